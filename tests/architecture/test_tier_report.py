"""The closing lines of `make test` cannot claim what did not happen."""

from pathlib import Path

import pytest

from tools.tier_report import TITLES, Case, Result, Session, closing_lines, failures, read_junit

TEST_TIERS = [tier for tier in TITLES if tier != "lint"]


def case(tier: str, outcome: str = "passed", name: str | None = None, **properties: str) -> Case:
    return Case(name or f"{tier}::test", tier, outcome, properties=properties)


def whole(*cases: Case, ci: bool = True, code: int = 0, docker: bool = False) -> Result:
    """A run of all parts in which each test tier has one passing test, but for the tiers that the arguments replace."""
    given = {item.tier for item in cases}
    filled = [case(tier) for tier in TEST_TIERS if tier not in given] + [item for item in cases if item.name != "absent"]
    sessions = [
        Session("lint", ("lint",), 0, 1, []),
        Session("tests", tuple(TEST_TIERS), code, 1, filled),
    ]
    return Result(docker=docker, ci=ci, sessions=sessions)


def test_a_run_with_all_tiers_passes_and_ends_with_the_plain_count() -> None:
    result = whole()
    assert failures(result) == []
    assert closing_lines(result)[-1] == f"tests: {len(TEST_TIERS)} passed, 0 failed"


@pytest.mark.parametrize("tier", TEST_TIERS)
def test_a_tier_without_one_test_fails(tier: str) -> None:
    assert failures(whole(case(tier, name="absent"))) == [f"{TITLES[tier]}: not one test ran"]


def test_in_ci_a_tier_that_did_not_run_fails() -> None:
    result = Result(docker=False, ci=True, not_run={"pods": "no Go"})
    assert "e2e (real pods): a tier that CI requires did not run" in failures(result)
    assert any("not run: no Go" in line for line in closing_lines(result))


def test_outside_ci_a_tier_that_cannot_run_is_named_and_does_not_fail() -> None:
    result = Result(docker=False, ci=False, not_run=dict.fromkeys(TITLES, "no Go"))
    assert failures(result) == []
    assert sum("not run: no Go" in line for line in closing_lines(result)) == len(TITLES)


def test_in_ci_a_skip_that_nobody_names_fails() -> None:
    result = whole(case("pods"), case("pods", "skipped", "pods::test_other"))
    assert failures(result) == ["e2e (real pods): a test was skipped that nobody names"]


def test_a_skip_is_always_shown() -> None:
    result = whole(case("pods"), case("pods", "skipped", "pods::test_other"), ci=False)
    assert failures(result) == []
    assert closing_lines(result)[0] == "skipped: pods::test_other: no reason given"


def test_a_failed_test_fails() -> None:
    assert failures(whole(case("gitops", "failed"))) == ["GitOps: 1 failed"]


def test_what_a_failed_test_said_is_shown_at_the_end_but_not_all_of_it() -> None:
    said = "no phase Succeeded after 60 s\n" + "\n".join(f"line {number}" for number in range(2, 100)) + "\n" + "x" * 500
    failed = Case("pods::test_other", "pods", "failed", said)
    lines = closing_lines(whole(case("pods"), failed, Case("pods::test_third", "pods", "failed", "y" * 500)))
    assert lines[:3] == ["failed: pods::test_other", "    no phase Succeeded after 60 s", "    line 2"]
    assert lines[30:34] == ["    line 30", "    ... and 70 lines more", "failed: pods::test_third", "    " + "y" * 200]


def test_a_command_that_fails_without_a_failed_test_fails() -> None:
    assert failures(whole(code=4)) == ["tests: exit code 4"]


def test_a_test_without_a_tier_fails() -> None:
    assert failures(whole(case("", name="odd::test"))) == ["odd::test: names no tier"]


def test_an_overdue_command_fails() -> None:
    session = Session("unit", ("unit",), 0, 900, [case("unit")], overdue=True)
    result = Result(docker=False, ci=False, whole=False, sessions=[session])
    assert failures(result) == ["unit: stopped at its deadline after 900 s"]


def test_a_part_alone_says_nothing_of_the_others() -> None:
    result = Result(docker=False, ci=False, whole=False, sessions=[Session("unit", ("unit",), 0, 1, [case("unit")])])
    assert closing_lines(result) == ["unit  ran: 1 passed, 0 failed, 0 skipped", "tests: 1 passed, 0 failed"]


def test_lint_fails_by_its_exit_code() -> None:
    result = Result(docker=False, ci=False, whole=False, sessions=[Session("lint", ("lint",), 2, 1, [])])
    assert failures(result) == ["lint: exit code 2"]


@pytest.mark.parametrize(
    ("cluster", "docker", "expected"),
    [
        ("local", False, "not run: no Docker; the choice of kind is tested with a fake on PATH"),
        ("local", True, "not run: the tests used local"),
        ("kind", True, "ran"),
    ],
)
def test_the_kind_line_says_which_cluster_was_used(cluster: str, docker: bool, expected: str) -> None:
    result = whole(case("pods", cluster=cluster), docker=docker)
    assert [line.split(maxsplit=1)[1] for line in closing_lines(result) if line.startswith("kind")] == [expected]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, "applied, not proved (nothing on this cluster enforces policies)"),
        ({"network-policy-enforced": "true"}, "proved"),
    ],
)
def test_enforcement_is_proved_only_when_a_test_says_so(properties: dict[str, str], expected: str) -> None:
    lines = closing_lines(whole(case("network_policy", **properties)))
    assert [line.split(maxsplit=2)[2] for line in lines if line.startswith("NetworkPolicy enforcement")] == [expected]


def test_a_report_is_read_by_tier_and_a_failed_teardown_counts_once(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    tier = '<properties><property name="tier" value="unit"/></properties>'
    report.write_text(
        "<testsuites><testsuite>"
        f'<testcase classname="a" name="one">{tier}</testcase>'
        f'<testcase classname="a" name="one">{tier}<error message="teardown"/></testcase>'
        f'<testcase classname="a" name="two">{tier}<skipped message="why"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert [(item.name, item.outcome, item.reason) for item in read_junit(report)] == [
        ("a::one", "failed", "teardown"),
        ("a::two", "skipped", "why"),
    ]
