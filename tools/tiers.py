"""Run the test tiers that this machine can, and say of each whether it ran and how it ended.

`make test` runs this module. A tier is read from the JUnit reports, never from an exit code alone: a tier without one
test, or with a skip that nobody named, has not passed. With `CI=true` every tier but kind is required.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.tier_report import Result, Session, closing_lines, failures, read_junit

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".reports"
INTERRUPT_GRACE_SECONDS = 180
# What the tests against a cluster of ours may leave, when they are killed before they have taken it down.
TAKE_DOWN = (sys.executable, "-m", "e2e.cluster", "--name", os.environ.get("STEPFENCE_CLUSTER_NAME", "e2e"), "down")
REQUIRED_TOOL = "go"


@dataclass(frozen=True)
class Job:
    """One command, the tiers whose tests it runs, and the seconds that it may take."""

    name: str
    command: Sequence[str]
    tiers: Sequence[str]
    deadline: float
    needs_cluster: bool = False
    environment: dict[str, str] = field(default_factory=dict)


PYTEST = (sys.executable, "-m", "pytest")
PROGRAMS = "programs"
JOBS = (
    Job("lint", ("make", "--no-print-directory", "lint"), ("lint",), 600),
    Job("unit", (*PYTEST, "tests", "--cov", "--cov-report=term"), ("unit", "cluster_choice"), 1200),
    Job(
        "histories",
        (*PYTEST, "tests/protocol/test_machine.py", "tests/protocol/test_stored_machine.py"),
        ("unit",),
        1200,
        environment={"STEPFENCE_HISTORIES": "2000", "STEPFENCE_STORED_HISTORIES": "2000"},
    ),
    Job("local", (*PYTEST, "e2e/local"), ("local",), 1800),
    # A job of its own, because a build from cold takes longer than any test may wait.
    Job(PROGRAMS, (sys.executable, "-m", "e2e.programs"), (), 2700, needs_cluster=True),
    Job("contract", (*PYTEST, "e2e/contract"), ("contract", "gitops", "network_policy"), 1200, needs_cluster=True),
    Job(
        "e2e",
        (*PYTEST, "e2e", "--ignore=e2e/contract", "--ignore=e2e/local"),
        ("pods", "cluster_choice", "gitops", "network_policy"),
        2100,
        needs_cluster=True,
    ),
)

# What mostly waits, for pods or for time to pass, runs beside the others, a lane each; what it prints is shown at the end.
BESIDE = ((PROGRAMS, "e2e"), ("local",))


def docker_runs() -> bool:
    """Tell whether a Docker engine answers, for that is what kind needs."""
    if shutil.which("docker") is None:
        return False
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def why_no_cluster(*, docker: bool) -> str | None:
    """Say what this machine lacks for a cluster, or None when it can have one."""
    if os.environ.get("STEPFENCE_KUBECONFIG") or docker:
        return None
    if sys.platform != "linux":
        return "no cluster named by STEPFENCE_KUBECONFIG, no Docker, and not Linux"
    if os.geteuid() != 0:
        return "no cluster named by STEPFENCE_KUBECONFIG, no Docker, and not root"
    if shutil.which(REQUIRED_TOOL) is None:
        return "no cluster named by STEPFENCE_KUBECONFIG, no Docker, and no Go to build one"
    return None


def run_job(job: Job, output: IO[bytes] | None = None) -> Session:
    """Run one job to its end or its deadline; an overdue one is interrupted first, so that fixtures tear down."""
    report = REPORTS / f"{job.name}.xml"
    report.unlink(missing_ok=True)
    command = list(job.command)
    if command[: len(PYTEST)] == list(PYTEST):
        command.append(f"--junitxml={report}")
    print(f"\n==> {job.name}: {' '.join(job.command)}", flush=True)
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **job.environment}, stdout=output, stderr=output)
    overdue = False
    try:
        code = process.wait(job.deadline)
    except subprocess.TimeoutExpired:
        overdue = True
        code = stop(process)
        if job.name == "e2e":
            subprocess.run(TAKE_DOWN, cwd=ROOT, stdout=output, stderr=output, timeout=INTERRUPT_GRACE_SECONDS, check=False)
    except KeyboardInterrupt:
        stop(process)
        raise
    seconds = time.monotonic() - started
    cases = read_junit(report) if report.exists() else []
    return Session(job.name, tuple(job.tiers), code, seconds, cases, overdue=overdue)


def run_all(jobs: Sequence[Job]) -> list[Session]:
    """Run the jobs one after the other, and beside them those that mostly wait. What needs a cluster waits for its programs."""
    named = {job.name: job for job in jobs}
    lanes = [[named[name] for name in lane] for lane in BESIDE if set(lane) <= named.keys()]
    others = [job for job in jobs if not any(job in lane for lane in lanes)]
    if not others:
        return [run_job(job) for job in jobs]
    logs = [REPORTS / f"{lane[-1].name}.log" for lane in lanes]
    beside: dict[str, Future[Session]] = {}
    sessions = []
    with ExitStack() as stack:
        for lane, log in zip(lanes, logs, strict=True):
            output = stack.enter_context(log.open("wb"))
            pool = stack.enter_context(ThreadPoolExecutor(1))
            beside |= {job.name: pool.submit(run_job, job, output) for job in lane}
        for job in others:
            if job.needs_cluster and PROGRAMS in beside:
                beside[PROGRAMS].result()
            sessions.append(run_job(job))
        for name, future in beside.items():
            print(f"\n==> {name}: waiting for its end", flush=True)
            sessions.append(future.result())
    for log in logs:
        print(log.read_text(errors="replace"), flush=True)
    return sessions


def stop(process: "subprocess.Popen[bytes]") -> int:
    """Interrupt a process, and kill it when it does not end in time."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(INTERRUPT_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def parse(arguments: Sequence[str] | None) -> list[Job]:
    """Turn the command line into the jobs to run: all of them, or those named by `--only`."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [job.name for job in JOBS]
    parser.add_argument("--only", action="append", choices=names, help="run this part alone (repeatable)")
    only = parser.parse_args(arguments).only
    chosen = [job for job in JOBS if only is None or job.name in only]
    cluster = any(job.needs_cluster for job in chosen)
    return [job for job in JOBS if job in chosen or (job.name == PROGRAMS and cluster)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and print the closing lines; 0 when all that must run ran and passed."""
    jobs = parse(arguments)
    REPORTS.mkdir(exist_ok=True)
    docker = docker_runs()
    lacking = why_no_cluster(docker=docker)
    result = Result(docker=docker, ci=os.environ.get("CI") == "true", whole=len(jobs) == len(JOBS))
    able = [job for job in jobs if not (job.needs_cluster and lacking)]
    for job in jobs:
        if lacking and job not in able:
            result.not_run.update(dict.fromkeys((job.name, *job.tiers), lacking))
    result.sessions.extend(run_all(able))
    print("\n" + "\n".join(closing_lines(result)), flush=True)
    return 1 if failures(result) else 0


if __name__ == "__main__":
    sys.exit(main())
