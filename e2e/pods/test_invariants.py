"""The watcher's own rules, each shown to find what it is there for."""

from typing import Any

import pytest

from e2e.pods.invariants import History

DONE = {"state": "Done", "attempt": 1, "token": 1, "key": "sf1a", "result": "1"}
HOLDER = {"podUID": "a", "requestID": "1"}
STATUS: dict[str, Any] = {"version": 5, "fencingToken": 2, "ledger": {"pay": DONE}, "holder": HOLDER}


def seen(*statuses: dict[str, Any]) -> list[str]:
    history = History("run")
    return [broken for status in statuses for broken in history.see(status)]


def test_a_run_that_goes_on_in_order_breaks_nothing() -> None:
    later = {**STATUS, "version": 6, "fencingToken": 3, "holder": {"podUID": "b", "requestID": "2"}}
    ended = {**later, "version": 7, "outcome": "Succeeded", "holder": None}
    assert seen({}, STATUS, STATUS, later, ended) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param({"version": 4}, "version shrank", id="an older version"),
        pytest.param({"fencingToken": 1}, "fencingToken shrank", id="an older token"),
        pytest.param({"ledger": {}}, "was removed", id="an entry that is gone"),
        pytest.param({"ledger": {"pay": {**DONE, "state": "InFlight"}}}, "its state changed", id="a Done step begun again"),
        pytest.param({"ledger": {"pay": {**DONE, "result": "2"}}}, "its result changed", id="a Done step with another result"),
        pytest.param({"ledger": {"pay": {**DONE, "key": "sf1b"}}}, "the key of step pay changed", id="another key"),
        pytest.param({"ledger": {"pay": {**DONE, "token": 0}}}, "token of step pay shrank", id="an entry with an older token"),
        pytest.param({"ledger": {"pay": {**DONE, "token": 9}}}, "above the run's", id="an entry with a token from nowhere"),
        pytest.param(
            {"outcome": "Failed", "ledger": {"pay": DONE, "b": {**DONE, "state": "InFlight"}}},
            "InFlight in a terminal run",
            id="a terminal run that works",
        ),
        pytest.param({"holder": {"podUID": "b", "requestID": "2"}}, "token 2 was held by", id="two holders under one token"),
    ],
)
def test_a_breach_is_found(change: dict[str, Any], found: str) -> None:
    assert any(found in broken for broken in seen(STATUS, {**STATUS, **change}))


def test_an_outcome_that_changes_is_found() -> None:
    assert seen({**STATUS, "outcome": "Failed"}, {**STATUS, "outcome": "Succeeded"}) == [
        "run at version 5: the outcome changed from Failed to Succeeded"
    ]


def test_an_older_holder_that_comes_back_is_found() -> None:
    newer = {**STATUS, "fencingToken": 3, "holder": {"podUID": "b", "requestID": "2"}}
    assert any("after token 3 was given out" in broken for broken in seen(STATUS, newer, STATUS))
