"""What the reports of a run mean: counts by tier, named skips, and the lines that close `make test`."""

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TITLES = {
    "lint": "lint",
    "unit": "unit",
    "local": "local (processes, no cluster)",
    "contract": "contract (API server)",
    "pods": "e2e (real pods)",
    "cluster_choice": "choice of cluster",
    "gitops": "GitOps",
    "network_policy": "NetworkPolicy",
}
# A skip passes in CI only when its test stands here with the reason why nobody can run it there.
_NO_FAULT_VERBS = "only a cluster of our own can have its API server frozen or a node cut off; kind and named ones cannot"
NAMED_SKIPS: dict[str, str] = dict.fromkeys(
    (
        "e2e.pods.test_servers::test_every_gateway_is_killed_while_it_has_the_report_in_hand_and_the_payment_is_recorded_once",
        "e2e.pods.test_servers::test_the_api_server_is_paused_for_twenty_seconds_and_every_run_goes_on",
        "e2e.pods.test_zombies::test_a_worker_on_a_lost_node_is_fenced_and_its_late_truth_is_heard",
    ),
    _NO_FAULT_VERBS,
)
# How much of a failed test's message is shown once more at the end, where a long log is not cut.
FAILURE_LINES = 30
FAILURE_COLUMNS = 200
NO_DOCKER = "not run: no Docker; the choice of kind is tested with a fake on PATH"
NOT_PROVED = "applied, not proved (nothing on this cluster enforces policies)"


@dataclass(frozen=True)
class Case:
    """One test of a JUnit report: `outcome` is passed, failed or skipped."""

    name: str
    tier: str
    outcome: str
    reason: str = ""
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """One finished command, with the tests that it reported."""

    name: str
    tiers: tuple[str, ...]
    code: int
    seconds: float
    cases: list[Case]
    overdue: bool = False


@dataclass
class Result:
    """All that ran. `whole` is false when only some parts were asked for."""

    docker: bool
    ci: bool
    whole: bool = True
    sessions: list[Session] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)

    def cases(self, tier: str | None = None) -> list[Case]:
        """List the tests of one tier, or all."""
        return [case for session in self.sessions for case in session.cases if tier in (None, case.tier)]


def read_junit(path: Path) -> list[Case]:
    """Read the tests of a JUnit report written by pytest; an unreadable report has none."""
    try:
        root = ET.parse(path).getroot()  # our own pytest wrote it
    except ET.ParseError:
        return []
    return merge(read_case(node) for node in root.iter("testcase"))


def read_case(node: ET.Element) -> Case:
    """Read one `testcase` element."""
    properties = {item.get("name", ""): item.get("value", "") for item in node.iter("property")}
    name = f"{node.get('classname', '')}::{node.get('name', '')}"
    outcome, reason = "passed", ""
    for kind, meaning in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
        found = node.find(kind)
        if found is not None:
            outcome, reason = meaning, (found.get("message") or "").strip()
    return Case(name, properties.get("tier", ""), outcome, reason, properties)


def merge(cases: Iterable[Case]) -> list[Case]:
    """Count a test once: pytest reports one whose teardown fails twice, and then it has failed."""
    by_name: dict[str, Case] = {}
    for case in cases:
        if case.name not in by_name or case.outcome == "failed":
            by_name[case.name] = case
    return list(by_name.values())


def count(cases: Iterable[Case], outcome: str) -> int:
    """Count the tests that ended so."""
    return sum(case.outcome == outcome for case in cases)


def tier_sessions(result: Result, tier: str) -> list[Session]:
    """List the sessions that may hold tests of a tier."""
    return [session for session in result.sessions if tier in session.tiers]


def tier_problem(result: Result, tier: str) -> str | None:
    """Say why a tier has not passed, or None."""
    sessions = tier_sessions(result, tier)
    if not sessions:
        return "a tier that CI requires did not run" if result.ci and result.whole else None
    if tier == "lint":
        return None if sessions[0].code == 0 else f"exit code {sessions[0].code}"
    cases = result.cases(tier)
    if count(cases, "failed"):
        return f"{count(cases, 'failed')} failed"
    if not count(cases, "passed") and (result.whole or tier in ("unit", "contract", "pods")):
        return "not one test ran"
    if result.ci and any(case.outcome == "skipped" and case.name not in NAMED_SKIPS for case in cases):
        return "a test was skipped that nobody names"
    return None


def failures(result: Result) -> list[str]:
    """List every reason why the whole has not passed; empty when it has."""
    found = [f"{TITLES[tier]}: {why}" for tier in TITLES if (why := tier_problem(result, tier))]
    for session in result.sessions:
        if session.overdue:
            found.append(f"{session.name}: stopped at its deadline after {session.seconds:.0f} s")
        elif session.code != 0 and not any(case.outcome == "failed" for case in session.cases) and session.name != "lint":
            found.append(f"{session.name}: exit code {session.code}")
        found += [f"{case.name}: names no tier" for case in session.cases if case.tier not in TITLES]
    return found


def tier_line(result: Result, tier: str) -> str:
    """Say of one tier whether it ran and how it ended."""
    problem = tier_problem(result, tier)
    sessions = tier_sessions(result, tier)
    if not sessions:
        why = result.not_run.get(tier, "its command was never started")
        return f"not run: {why}" + (f" (FAILED: {problem})" if problem else "")
    seconds = sum(session.seconds for session in sessions)
    if tier == "lint":
        return f"ran: {'FAILED: ' + problem if problem else 'passed'}, {seconds:.0f} s"
    cases = result.cases(tier)
    numbers = ", ".join(f"{count(cases, word)} {word}" for word in ("passed", "failed", "skipped"))
    return f"{'ran' if cases else 'not run'}: {numbers}" + (f" (FAILED: {problem})" if problem else "")


def kind_line(result: Result) -> str:
    """Say whether kind ran: it is what the cluster fixture takes when Docker runs and no cluster is named."""
    used = {case.properties["cluster"] for case in result.cases() if "cluster" in case.properties}
    if "kind" in used:
        return "ran"
    if not result.docker:
        return NO_DOCKER
    return "not run: " + (f"the tests used {', '.join(sorted(used))}" if used else "no test asked for a cluster")


def enforcement_line(result: Result) -> str:
    """Say whether NetworkPolicies were seen to be enforced, applied only, or neither."""
    cases = result.cases("network_policy")
    if any(case.properties.get("network-policy-enforced") == "true" for case in cases if case.outcome == "passed"):
        return "proved"
    return NOT_PROVED if count(cases, "passed") else "not applied: no test of it passed"


def asked_for(result: Result, tier: str) -> bool:
    """Tell whether a tier belongs to the parts that were asked for, run or not."""
    return result.whole or tier in result.not_run or bool(tier_sessions(result, tier))


def failure_lines(case: Case) -> list[str]:
    """Say which test failed, and what it said first."""
    said = (case.reason or "no message").splitlines()
    more = [f"    ... and {len(said) - FAILURE_LINES} lines more"] if len(said) > FAILURE_LINES else []
    return [f"failed: {case.name}", *(f"    {line[:FAILURE_COLUMNS]}" for line in said[:FAILURE_LINES]), *more]


def closing_lines(result: Result) -> list[str]:
    """Write what `make test` ends with: failed tests, skips, one line a tier, the two special ones, failures, the plain count."""
    lines = [line for case in result.cases() if case.outcome == "failed" for line in failure_lines(case)]
    lines += [f"skipped: {case.name}: {case.reason or 'no reason given'}" for case in result.cases() if case.outcome == "skipped"]
    rows = [(TITLES[tier], tier_line(result, tier)) for tier in TITLES if asked_for(result, tier)]
    if result.whole:
        rows += [("kind", kind_line(result)), ("NetworkPolicy enforcement", enforcement_line(result))]
    width = max(len(title) for title, _ in rows) + 2
    lines += [f"{title:<{width}}{text}" for title, text in rows]
    lines += [f"FAILED: {why}" for why in failures(result)]
    cases = result.cases()
    broken = count(cases, "failed")
    return [*lines, f"tests: {count(cases, 'passed')} passed, {broken} failed"]
