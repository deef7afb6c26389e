"""A report of what happened is never refused for its form: what is of no use in it is passed over, and the truth is kept."""

import json
import math
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepfence.core.canonical import canonical, digest
from stepfence.core.kept import NOT_KEPT
from stepfence.gateway import wire
from stepfence.gateway.mending import parse_report
from tests.gateway.support import Pod, code, gateway
from tests.gateway.test_routes import begin

DAY = 86_400


async def raw(pod: Pod, path: str, content: bytes, **headers: str) -> httpx.Response:
    whole = {"Authorization": f"Bearer {pod.bearer}", "Content-Type": "application/json", **headers}
    return await pod.client.post(pod.base + path, content=content, headers=whole)


async def said(pod: Pod, path: str, **body: Any) -> httpx.Response:
    """Call a route with JSON as Python writes it, NaN and all."""
    return await raw(pod, path, json.dumps({"requestID": "r", "token": pod.token, "attempt": 1, **body}).encode())


@pytest.mark.parametrize(
    ("asked", "pause"),
    [
        (30, 30),
        ("30", 30),
        (-5, 0),
        (10**12, DAY),
        (10**400, DAY),
        (-(10**400), 0),
        (math.inf, DAY),
        (math.nan, 0),
        ("Fri, 31 Dec 2099 23:59:59 GMT", 0),
        (None, 0),
        ([1], 0),
        ({"seconds": 1}, 0),
        (True, 0),
    ],
)
async def test_a_sure_failure_is_heard_whatever_pause_it_asks_for(asked: Any, pause: float) -> None:
    async with gateway() as world:
        pod = await world.claimed(plan=[{"id": "lookup", "action": "Payment", "attempts": 3, "backoffSeconds": 0}])
        await begin(pod)
        told = await said(pod, "/steps/lookup/fail", reason="HTTP429", retryAfterSeconds=asked)
        assert (told.status_code, told.json()["outcome"], told.json()["failures"]) == (200, "Failed", 1)
        again = await begin(pod)
        if pause:
            assert (again["outcome"], again["retryAfterSeconds"]) == ("Wait", pause)
        else:
            assert (again["outcome"], again["attempt"]) == ("Go", 2)


async def test_a_pause_of_1e400_is_heard() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        body = b'{"requestID": "r", "token": 1, "attempt": 1, "reason": "HTTP429", "retryAfterSeconds": 1e400}'
        told = await raw(pod, "/steps/lookup/fail", body)
        assert (told.status_code, told.json()["outcome"]) == (200, "Failed")


ODD_TEXTS: list[tuple[Any, str, str]] = [
    (None, "Unspecified", ""),
    ("", "Unspecified", ""),
    (402, "402", "402"),
    (1.5, "1.5", "1.5"),
    (True, "Unspecified", "true"),
    (["a"], "Unspecified", '["a"]'),
    ({"error": "no", "nan": math.nan}, "Unspecified", '{"error": "no", "nan": NaN}'),
    ("a b\n\x00\u202e;DROP", "a b\n\x00\u202e;DROP", "a b\n\x00\u202e;DROP"),
    ("\ud800", "?", "?"),
    ("x" * 5000, "x" * 128, "x" * 1024),
]


@pytest.mark.parametrize("verb", ["fail", "lose"])
@pytest.mark.parametrize(("given_", "reason", "message"), ODD_TEXTS, ids=[repr(row[0])[:20] for row in ODD_TEXTS])
async def test_a_reason_and_a_message_of_any_kind_are_heard(verb: str, given_: Any, reason: str, message: str) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod, "refund")
        told = await said(pod, f"/steps/refund/{verb}", reason=given_, message=given_)
        assert told.status_code == 200, told.text
        assert (told.json()["reason"], told.json()["message"]) == (reason, message)


@pytest.mark.parametrize(("final", "means"), [("yes", False), ("true", True), (1, True), (0, False), (None, False), ([], False)])
async def test_a_failure_is_final_only_when_it_clearly_says_so(final: Any, means: bool) -> None:
    async with gateway() as world:
        pod = await world.claimed(plan=[{"id": "lookup", "action": "Payment", "attempts": 3}])
        await begin(pod)
        told = await said(pod, "/steps/lookup/fail", reason="R", final=final)
        assert (told.status_code, told.json()["final"]) == (200, means)


@pytest.mark.parametrize("verb", ["complete", "fail", "lose"])
@pytest.mark.parametrize(
    "more",
    [{"attempt": 1.0}, {"attempt": "1"}, {"token": 1.0}, {"token": "1"}, {"requestID": None}, {"requestID": "a.b/c"}, {"extra": {"x": 1}}],
    ids=str,
)
async def test_what_is_told_in_an_odd_way_is_heard(verb: str, more: dict[str, Any]) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        told = await said(pod, f"/steps/lookup/{verb}", **more)
        assert told.status_code == 200, told.text
        assert told.json()["outcome"] == {"complete": "Done", "fail": "Failed", "lose": "Unknown"}[verb]


RESULT: Any = {"id": "re_9"}
SHA = digest(canonical(RESULT))


@pytest.mark.parametrize(
    ("body", "result", "recorded", "size"),
    [
        ({}, None, digest("null"), 4),
        ({"result": RESULT, "resultDigest": "sha256:" + "0" * 64, "resultBytes": 5}, RESULT, SHA, 13),
        ({"result": RESULT, "resultDigest": 5}, RESULT, SHA, 13),
        ({"result": RESULT, "resultBytes": -1}, RESULT, SHA, 13),
        ({"result": None, "resultDigest": SHA, "resultBytes": 9_000_000}, None, SHA, 9_000_000),
        ({"resultDigest": SHA, "resultBytes": 9e6}, None, SHA, 9_000_000),
        ({"resultDigest": SHA}, None, SHA, 0),
        ({"resultDigest": SHA, "resultBytes": "many"}, None, SHA, 0),
    ],
    ids=str,
)
async def test_a_success_is_heard_with_what_is_known_of_its_result(body: dict[str, Any], result: Any, recorded: str, size: int) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod, "refund")
        told = await said(pod, "/steps/refund/complete", **body)
        assert told.status_code == 200, told.text
        done = told.json()
        assert (done["outcome"], done["result"], done["resultDigest"], done["resultBytes"]) == ("Done", result, recorded, size)
        assert done["resultStored"] is (recorded != SHA or result is not None)


@pytest.mark.parametrize("body", [{"resultDigest": "md5:1"}, {"resultBytes": 9_000_000}, {"resultDigest": 1, "resultBytes": None}], ids=str)
async def test_a_result_of_which_nothing_of_use_is_known_is_not_taken_for_null(body: dict[str, Any]) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod, "refund")
        done = (await said(pod, "/steps/refund/complete", **body)).json()
        assert (done["outcome"], set(done["result"])) == ("Done", {NOT_KEPT})


LOSSY: list[tuple[str, bytes, Any]] = [
    ("NaN", b'{"rate": NaN, "most": [Infinity, -Infinity, 1e400]}', {"rate": "NaN", "most": ["Infinity", "-Infinity", "Infinity"]}),
    ("half a surrogate pair", rb'{"text": "caf\udce9", "\ud83d": 1}', {"text": "caf\\udce9", "\\ud83d": 1}),
]


@pytest.mark.parametrize("how", ["complete", "probe"])
@pytest.mark.parametrize(("content", "kept"), [row[1:] for row in LOSSY], ids=[row[0] for row in LOSSY])
async def test_a_result_that_cannot_be_kept_is_recorded_as_far_as_it_can(how: str, content: bytes, kept: Any) -> None:
    async with gateway() as world:
        pod = await world.claimed(plan=[{"id": "refund", "action": "Payment", "probe": {"giveUpAfterSeconds": 300}}])
        await begin(pod, "refund")
        more = b""
        if how == "probe":
            await said(pod, "/steps/refund/lose", reason="TimedOut")
            world.clock.advance(70)
            more = b', "verdict": "Happened", "asOf": "2026-01-02T03:05:15.000Z"'
        told = await raw(pod, f"/steps/refund/{how}", b'{"requestID": "r", "token": 1, "attempt": 1, "result": ' + content + more + b"}")
        assert (told.status_code, told.json()["outcome"]) == (200, "Done")
        assert told.json()["result"][NOT_KEPT]["value"] == kept
        replayed = await begin(pod, "refund")
        assert (replayed["outcome"], replayed["result"]) == ("Done", told.json()["result"])


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"verdict": "Happened", "result": RESULT}, "Done"),
        ({"verdict": "Happened", "result": RESULT, "asOf": "yesterday"}, "Done"),
        ({"verdict": "Happened", "asOf": 5}, "Done"),
        ({"verdict": "Happened", "asOf": "2026-01-02T03:05:15.000Z", "giveUp": "no"}, "Done"),
        ({"verdict": "Maybe", "asOf": "2026-01-02T03:05:15.000Z"}, "Unknown"),
        ({"verdict": ["Happened"], "asOf": "2026-01-02T03:05:15.000Z"}, "Unknown"),
        ({"asOf": "2026-01-02T03:05:15.000Z"}, "Unknown"),
        # A "no" counts only with the moment at which it was asked.
        ({"verdict": "DidNotHappen"}, "Unknown"),
        ({"verdict": "DidNotHappen", "asOf": "2026-01-02T03:05:15"}, "Unknown"),
        ({"verdict": "DidNotHappen", "asOf": "2026-01-02T03:05:15.000Z"}, "Failed"),
    ],
    ids=str,
)
async def test_what_a_probe_found_is_heard_as_far_as_it_is_clear(body: dict[str, Any], outcome: str) -> None:
    async with gateway() as world:
        pod = await world.claimed(plan=[{"id": "refund", "action": "Payment", "probe": {"giveUpAfterSeconds": 300}}])
        await begin(pod, "refund")
        await said(pod, "/steps/refund/lose", reason="TimedOut")
        world.clock.advance(70)
        told = await said(pod, "/steps/refund/probe", **body)
        assert (told.status_code, told.json()["outcome"]) == (200, outcome), told.text


@pytest.mark.parametrize("reason", ["Lingered", None, 5, []])
async def test_a_release_for_a_reason_of_a_newer_worker_lets_the_run_go(reason: Any) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        told = await said(pod, "/release", reason=reason)
        assert (told.status_code, told.json()) == (200, {"released": True})
        assert "holder" not in pod.run.status
        assert pod.run.status["worker"]["exitReason"] == "Error"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", ""])
@pytest.mark.parametrize("verb", ["complete", "fail", "lose"])
async def test_a_report_is_json_whatever_it_calls_itself(kind: str, verb: str) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        body = b'{"requestID": "r", "token": 1, "attempt": 1, "reason": "R", "result": 1}'
        told = await raw(pod, f"/steps/lookup/{verb}", body, **{"Content-Type": kind})
        assert told.status_code == 200, told.text


@pytest.mark.parametrize(
    ("message", "heard"),
    [(b"caf\xe9", "caf\ufffd"), (b"two\nlines\t\x01", "two\nlines\t\x01"), (b"\xef\xbb\xbf", "\ufeff")],
    ids=["no UTF-8", "control characters", "a mark of byte order"],
)
async def test_a_report_that_a_shell_put_together_is_heard(message: bytes, heard: str) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        told = await raw(
            pod, "/steps/lookup/lose", b'{"requestID": "r", "token": 1, "attempt": 1, "reason": "R", "message": "' + message + b'"}'
        )
        assert (told.status_code, told.json()["message"]) == (200, heard)


async def test_a_number_of_more_digits_than_python_reads_loses_no_success() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        told = await raw(pod, "/steps/lookup/complete", b'{"requestID": "r", "token": 1, "attempt": 1, "result": ' + b"9" * 5000 + b"}")
        assert (told.status_code, told.json()["result"][NOT_KEPT]["value"]) == (200, "Infinity")


@pytest.mark.parametrize("levels", [100, 300, 900, 5000, 200_000])
async def test_a_result_that_nests_too_deep_loses_no_success(levels: int) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        result = b'{"id": "re_[9", "deep": ' + b"[" * levels + b"]" * levels + b"}"
        told = await raw(pod, "/steps/lookup/complete", b'{"requestID": "r", "token": 1, "attempt": 1, "result": ' + result + b"}")
        assert (told.status_code, told.json()["outcome"]) == (200, "Done")
        recorded = told.json()["result"]
        assert recorded.get(NOT_KEPT, {}).get("value", recorded)["id"] == "re_[9"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"attempt=1", b"[" * 5000])
async def test_what_says_nothing_at_all_is_a_400(content: bytes) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        assert code(await raw(pod, "/steps/lookup/lose", content)) == "bad-request"


async def test_the_log_names_the_field_and_never_what_stood_there() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        with structlog.testing.capture_logs() as logs:
            await said(pod, "/steps/lookup/fail", reason={"s3cret": 1}, message=["s3cret"], retryAfterSeconds="s3cret")
        mended = [log["field"] for log in logs if log["event"] == "gateway.report.mended"]
        assert mended == ["reason", "message", "retryAfterSeconds"]
        assert "s3cret" not in str(logs)


async def test_a_begin_is_read_strictly_for_nothing_was_done_yet() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        for more in ({"token": "1"}, {"requestID": "a.b"}, {"payload": math.nan}):
            assert code(await said(pod, "/steps/lookup/begin", **{"payload": None, **more})) == "bad-request"
        kind = {"Content-Type": "text/plain"}
        assert (await raw(pod, "/steps/lookup/begin", b'{"requestID": "r", "token": 1, "payload": 1}', **kind)).status_code == 415


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "requestID",
    "reason",
    "message",
    "final",
    "retryAfterSeconds",
    "result",
    "resultDigest",
    "resultBytes",
    "asOf",
    "verdict",
    "giveUp",
]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(FIELDS), anything))
def test_no_field_of_a_report_can_be_so_odd_that_it_is_refused(body: dict[str, Any]) -> None:
    whole = parse_report(json.dumps({"token": 1, "attempt": 1, **body}).encode())
    for kind in (wire.CompleteBody, wire.FailBody, wire.LoseBody, wire.ProbeBody, wire.ReleaseBody):
        read = kind.model_validate(whole)
        assert read.token == 1
    fail = wire.FailBody.model_validate(whole)
    assert fail.retry_after_seconds is None or 0 <= fail.retry_after_seconds <= DAY
    assert len(fail.reason) in range(1, 129)
    assert len(fail.message) <= 1024
    told = wire.CompleteBody.model_validate(whole)
    assert told.omitted is None or told.result is None


@pytest.mark.parametrize("verb", ["complete", "fail", "lose", "probe", "release", "begin", "claim"])
async def test_a_run_that_a_newer_version_wrote_is_told_of_later_and_nothing_said_of_it_is_refused(verb: str) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await pod.post("/steps/refund/begin", payload=None)
        status = world.cluster.store._objects[pod.run.key]["status"]
        ledger = status["ledger"]
        status["ledger"] = {**ledger, "lookup": {"state": "OfANewerVersion", "key": "k"}}
        world.cluster.store._objects[pod.run.key]["metadata"]["resourceVersion"] = "newer"
        path = f"/{verb}" if verb in ("release", "claim") else f"/steps/refund/{verb}"
        said = {"attempt": 1, "reason": "NotApplied", "result": None, "payload": None, "verdict": "Happened"}
        answer = await pod.post(path, **said)
        assert (answer.status_code, code(answer), answer.headers["Retry-After"]) == (503, "store-unavailable", "5")
        assert status["ledger"]["lookup"]["state"] == "OfANewerVersion"
        status["ledger"] = ledger
        assert (await pod.post(path, **said)).status_code in (200, 409)
        if verb == "complete":
            assert pod.run.status["ledger"]["refund"]["state"] == "Done"
