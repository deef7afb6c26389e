"""What the controller, the persons and the user may do next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from stepfence.core import answers, fencing
from stepfence.core.canonical import parse
from stepfence.core.lifecycle import keep_time, request_cancel, waits_for_people
from stepfence.core.model import Body, Decision, Run
from stepfence.core.summary import Question, QuestionKind
from stepfence.core.words import At, State, Verdict
from stepfence.testing.builders import body
from tests.protocol import controller
from tests.protocol.actors import Patch, Pod, Status
from tests.protocol.world import Move, World

_PODS = 4


def moves(world: World) -> list[Move]:
    """Return what controller, persons and user may do next."""
    found: list[Move] = [("the controller reconciles", partial(reconcile, world))] * 2
    found.append(("the controller writes and crashes", partial(reconcile, world, crash=True)))
    found += [(f"time: {seconds} s", partial(world.tick, seconds)) for seconds in (1, 3, 7)]
    for pod in world.pods:
        if pod.status is Status.TERMINAL and not pod.reported:
            found.append((f"the kubelet reports {pod.name}", partial(_report, pod)))
            if world.on("erase"):
                found.append((f"{pod.name} is erased unseen", partial(_erase, pod)))
    if world.on("extra") and len(world.running()) == 1 and len(world.pods) < _PODS:
        found.append(("another pod starts", partial(_start, world)))
    for effect in world.provider.effects:
        if not effect.visible:
            found.append((f"{effect.flight} becomes visible", partial(setattr, effect, "visible", True)))
    return found + (_person_moves(world) if world.on("people") else []) + _user_moves(world)


def _start(world: World) -> None:
    world.start_pod()


def _told_to_go(world: World, pod: Pod) -> None:
    pod.deleting, pod.deletion_at = True, world.now + timedelta(seconds=controller.GRACE)


def _report(pod: Pod) -> None:
    pod.reported = True


def _erase(pod: Pod) -> None:
    pod.status = Status.GONE


# --- persons --------------------------------------------------------------------------------------------------------------


def _person_moves(world: World) -> list[Move]:
    found: list[Move] = []
    for key, question in world.questions.items():
        found += [(f"a person answers {key}", partial(answer, world, question, truth(world, question)))] * 2
        if question.kind is QuestionKind.APPROVE:
            found.append((f"a person denies {key}", partial(answer, world, question, Verdict.DENY)))
        if world.on("force") and question.kind is QuestionKind.RECONCILE and truth(world, question) is Verdict.DID_NOT_HAPPEN:
            found.append((f"a person forces {key}", partial(answer, world, question, Verdict.DID_NOT_HAPPEN, force=True)))
        if world.on("wrong"):
            odd = Verdict.HAPPENED if question.kind is QuestionKind.APPROVE else Verdict.APPROVE
            found.append((f"a person answers {key} with {odd}", partial(answer, world, question, odd)))
            found.append((f"a person abandons {key}", partial(answer, world, question, Verdict.ABANDON)))
    if world.on("stale"):
        late = [key for key in world.seen if key not in world.questions or not world.rules.admission]
        found += [(f"a late answer to {key}", partial(_late, world, key)) for key in late[-3:]]
    return found


def truth(world: World, question: Question) -> Verdict:
    """Return what a truthful person says at this moment."""
    if question.kind is QuestionKind.APPROVE:
        return Verdict.APPROVE
    if question.kind is QuestionKind.HOLD:
        return Verdict.RESUME
    return Verdict.DID_NOT_HAPPEN if world.provider.look(question.step) is None else Verdict.HAPPENED


def answer(world: World, question: Question, verdict: Verdict, *, force: bool = False) -> None:
    """Patch one decision in, as the API server admits it: only open questions, no early "no", never the same key twice."""
    if world.rules.admission:
        early = verdict is Verdict.DID_NOT_HAPPEN and not force and not question.accepts_did_not_happen
        if question.key not in world.questions or early or question.key in world.run.spec.decisions:
            world.trace.append("      not admitted")
            return
    _write(world, question.key, question.step, verdict, force)


def _late(world: World, key: str) -> None:
    """A person who saw a question some time ago answers it now; nothing stops the patch, for the core alone must hold."""
    step, _ = world.seen[key]
    verdict = Verdict.DID_NOT_HAPPEN if world.provider.look(step) is None else Verdict.HAPPENED
    entry = world.run.ledger.get(step)
    asked = Verdict.APPROVE if entry is not None and entry.state is State.AWAITING_APPROVAL else verdict
    _write(world, key, step, asked, force=False)


def _write(world: World, key: str, step: str, verdict: Verdict, force: bool) -> None:
    opening = world.seen[key][1]
    world.book.patches.append(Patch(key, step, verdict, force, opening))
    found = world.provider.look(step) if verdict is Verdict.HAPPENED else None
    earlier = world.run.spec.decisions.get(key)
    # A merge patch merges: a field that is not named keeps what an earlier patch wrote.
    decision = Decision(verdict, result=found, force=force or (earlier is not None and earlier.force), by="someone")
    world.patch_spec(decisions={**world.run.spec.decisions, key: decision})


# --- the user -------------------------------------------------------------------------------------------------------------


def _user_moves(world: World) -> list[Move]:
    spec = world.run.spec
    found: list[Move] = []
    if world.on("suspend"):
        found.append(("the user " + ("resumes" if spec.suspend else "suspends"), partial(world.patch_spec, suspend=not spec.suspend)))
    if world.on("cancel") and not spec.cancel:
        found.append(("the user cancels", partial(world.patch_spec, cancel=True)))
    if world.on("drain"):
        found += [(f"{pod.name} is told to go", partial(_told_to_go, world, pod)) for pod in world.running() if not pod.deleting]
    return found


# --- the controller -------------------------------------------------------------------------------------------------------


def reconcile(world: World, *, crash: bool = False) -> None:
    """One pass: one write of all that follows from what is seen, then pods. A crash comes between the two."""
    if world.scenario.decides:
        controller.reconcile(world, crash=crash)
        return
    world.execute(_pass(world), refresh=True)
    if crash:
        return
    for pod in world.running():
        if world.rules.delete_overdue_pods and _overdue(world, pod):
            pod.die()
    if wants_worker(world) and not world.running() and len(world.pods) < _PODS:
        world.start_pod()


def wants_worker(world: World) -> bool:
    """Whether a worker could go on with something."""
    run = world.run
    over = run.terminal or run.ending is not None or run.spec.cancel
    return not over and not waits_for_people(run, world.at())


def _pass(world: World) -> Callable[[Run, At], tuple[Run, None]]:
    reported = [pod for pod in world.pods if pod.reported]
    for pod in reported:
        pod.confirmed_at = pod.confirmed_at or world.now
    world.keep_assumption()

    def edit(run: Run, at: At) -> tuple[Run, None]:
        run = request_cancel(run, at)
        for pod in reported:
            run = fencing.note_terminated(run, pod.uid, pod.confirmed_at or at.now)
        holder = next((pod for pod in world.pods if run.holder is not None and pod.uid == run.holder.pod_uid), None)
        if run.holder is not None and (holder is None or holder.status is not Status.RUNNING):
            run = fencing.settle(run, "WorkerLost", at)
        elif holder is not None and holder.deleting:
            run = fencing.drain(run)
        run, _ = answers.catch_up(run, _bodies(run), at)
        return keep_time(run, at), None

    return edit


def _bodies(run: Run) -> dict[str, Body]:
    return {key: body(parse(decision.result)) for key, decision in run.spec.decisions.items() if decision.result is not None}


def _overdue(world: World, pod: Pod) -> bool:
    """R14: the pod of a step that is past its deadline plus margin; and one that has not been heard of for long."""
    if world.now >= pod.heard_at + timedelta(seconds=world.scenario.settings.unresponsive):
        return True
    margin = timedelta(seconds=world.scenario.settings.margin)
    last = [entry.recorded(entry.attempt) for entry in world.run.ledger.values() if entry.state in (State.IN_FLIGHT, State.UNKNOWN)]
    return any(a is not None and a.pod_uid == pod.uid and not a.failed and world.now >= a.deadline + margin for a in last)


def unhold(world: World) -> None:
    """The user lets a suspended run go on."""
    if world.run.spec.suspend:
        world.patch_spec(suspend=False)
