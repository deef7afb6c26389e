"""`make test` builds before it waits: no test's own deadline covers a build from cold."""

import threading
from pathlib import Path
from typing import IO

import pytest

from tools import tiers
from tools.tier_report import Session


@pytest.mark.parametrize("part", ["contract", "e2e"])
def test_a_part_that_needs_a_cluster_brings_its_programs(part: str) -> None:
    assert [job.name for job in tiers.parse(["--only", part])] == ["programs", part]


def test_a_part_that_needs_none_brings_none() -> None:
    assert [job.name for job in tiers.parse(["--only", "unit"])] == ["unit"]


def test_only_what_needs_a_cluster_waits_for_its_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    others_ran, local_ran = threading.Event(), threading.Event()

    def run_job(job: tiers.Job, _output: IO[bytes] | None = None) -> Session:
        started.append(job.name)
        {"histories": others_ran, "local": local_ran}.get(job.name, threading.Event()).set()
        if job.name == "programs":
            assert others_ran.wait(10), "the parts without a cluster waited for a build"
            assert local_ran.wait(10), "what runs beside the others waited for a build"
            started.append("programs are there")
        return Session(job.name, (), 0, 0, [])

    monkeypatch.setattr(tiers, "run_job", run_job)
    monkeypatch.setattr(tiers, "REPORTS", tmp_path)
    sessions = tiers.run_all(tiers.JOBS)
    there = started.index("programs are there")
    assert {name for name in started[:there] if name != "programs"} == {"lint", "unit", "histories", "local"}
    assert set(started[there + 1 :]) == {"contract", "e2e"}
    assert {session.name for session in sessions} == {job.name for job in tiers.JOBS}
