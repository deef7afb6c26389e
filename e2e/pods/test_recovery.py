"""Doubts that no person is asked about: a query is asked again, a probe looks, a keyed request is sent again, a value set again."""

from datetime import datetime

from e2e.pods.outside import HANG
from e2e.pods.runs import notify, refund, ticket
from e2e.pods.world import Space
from e2e.provider.wire import Fault, Happening, Route


def kill_at_pay(space: Space, route: Route, rule: dict[str, Fault], step: str, **planned: object) -> None:
    """Start a run of one doubtful step and kill its worker while the provider holds the answer, or the effect, back."""
    told = space.provider.tell(route, run=space.id_of("run"), **rule)
    operation = ticket(step) if route is Route.PUT_TICKET else refund(step, probe="probe" in planned)
    space.start(space.spec("run", operation, notify(), planned={step: planned}))
    space.until_hanging(told)
    space.sigkill(space.holder_pod("run"))


def never_asked(space: Space) -> bool:
    return "NeedsReconciliation" not in space.world.watcher.phases(space.namespace, "run")


def test_a_probe_that_finds_the_payment_settles_the_doubt_without_a_person(space: Space) -> None:
    kill_at_pay(space, Route.CREATE_REFUND, {"after": HANG}, "pay", probe={"giveUpAfterSeconds": 120})
    run = space.until_phase("run", "Succeeded")
    assert (run.entry("pay")["attempt"], never_asked(space)) == (1, True)
    assert len(space.provider.entries(Happening.REQUEST, run=space.id_of("run"), step="pay", route=Route.CREATE_REFUND)) == 1


def test_a_probe_that_finds_nothing_lets_the_payment_be_made_once_more_with_the_same_key(space: Space) -> None:
    kill_at_pay(space, Route.CREATE_REFUND, {"before": HANG}, "pay", probe={"giveUpAfterSeconds": 120})
    run = space.until_phase("run", "Succeeded")
    assert (run.entry("pay")["attempt"], never_asked(space)) == (2, True)
    sent = space.provider.entries(Happening.REQUEST, run=space.id_of("run"), step="pay", route=Route.CREATE_REFUND)
    assert [entry.key for entry in sent] == [run.entry("pay")["key"]] * 2


def test_a_probe_that_cannot_tell_gives_up_and_a_person_is_asked(space: Space) -> None:
    space.provider.tell(Route.FIND_REFUNDS, run=space.id_of("run"), before=Fault(status=503), count=None)
    kill_at_pay(space, Route.CREATE_REFUND, {"after": HANG}, "pay", timeoutSeconds=5, probe={"giveUpAfterSeconds": 5})
    key, _ = space.until_question("run", "Reconcile", seconds=90)
    assert space.provider.entries(Happening.REQUEST, run=space.id_of("run"), route=Route.FIND_REFUNDS), "it was asked"
    assert space.answer("run", key, "Happened").is_success
    space.until_phase("run", "Succeeded")


def test_a_resend_with_the_same_key_is_one_effect_at_a_provider_that_honours_keys(space: Space) -> None:
    resend = {"recovery": "ResendWithKey", "idempotencyKeyTTLSeconds": 3600}
    space.allowed[("run", "pay")] = (2, "one effect, and its replay by the key that the plan says the provider honours")
    kill_at_pay(space, Route.CREATE_REFUND, {"after": HANG}, "pay", **resend)
    run = space.until_phase("run", "Succeeded")
    assert (run.entry("pay")["attempt"], never_asked(space)) == (2, True)
    assert len(space.provider.entries(Happening.REPLAY, run=space.id_of("run"), step="pay")) == 1
    assert len(space.provider.effects(run=space.id_of("run"), step="pay")) == 1


def test_a_resend_that_would_outlive_the_key_is_not_made_and_a_person_is_asked(space: Space) -> None:
    short = {"recovery": "ResendWithKey", "idempotencyKeyTTLSeconds": 21, "timeoutSeconds": 20}
    kill_at_pay(space, Route.CREATE_REFUND, {"after": HANG}, "pay", **short)
    key, _ = space.until_question("run", "Reconcile")
    assert space.answer("run", key, "Happened").is_success
    run = space.until_phase("run", "Succeeded")
    assert run.entry("pay")["attempt"] == 1


def test_an_upsert_is_set_again_only_when_the_old_request_can_no_longer_land(space: Space) -> None:
    space.allowed[("run", "mark")] = (2, "an Upsert sets the same value again: the type allows it by construction")
    kill_at_pay(space, Route.PUT_TICKET, {"after": HANG}, "mark", settleSeconds=5)
    killed = space.until_run(
        "run", "confirmed end", lambda run: run.state("mark") == "Unknown" and run.entry("mark")["open"][0].get("terminatedAt")
    )
    run = space.until_phase("run", "Succeeded")
    assert (run.entry("mark")["attempt"], never_asked(space)) == (2, True)
    _first, second = (entry.time for entry in space.provider.entries(Happening.REQUEST, run=space.id_of("run"), step="mark"))
    assert (second - datetime.fromisoformat(str(killed))).total_seconds() >= 5, "R1: the settle time of the first request"
