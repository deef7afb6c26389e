"""What workers may do next, the SDK's way, and every way in which it may go wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from stepfence.core.canonical import parse
from stepfence.core.errors import Code, Refused
from stepfence.core.ledger import Go
from stepfence.core.model import Body
from stepfence.core.words import State, Verdict
from stepfence.testing.builders import body
from tests.protocol import calls
from tests.protocol.actors import Attempted, Does, LateCopy, Pod, Status, Thread
from tests.protocol.calls import Edit
from tests.protocol.provider import Flight
from tests.protocol.world import Move, World

_REQUESTS = (Does.CLAIM, Does.BEGIN, Does.REPORT, Does.PROBED, Does.FINISH)
_LATE_COPIES = 4


def moves(world: World) -> list[Move]:
    """Return what the threads, the network and the provider may do next, the usual first."""
    found: list[Move] = []
    for pod in world.pods:
        if pod.alive:
            for thread in pod.threads:
                found += _thread_moves(world, thread)
            found += _pod_moves(world, pod)
    found += [(f"{flight} lands", partial(land, world, flight)) for flight in world.flights]
    found += [(f"late copy of {copy.label}", partial(_deliver, world, copy)) for copy in world.copies]
    return found


def usual(world: World, thread: Thread) -> Callable[[], None] | None:
    """Return the next move of a thread when nothing goes wrong, None when it has nothing to do."""
    if thread.does in _REQUESTS:
        return partial(request, world, thread, "ok")
    if thread.does is Does.SEND:
        return partial(send, world, thread, "ok")
    if thread.does is Does.PROBE:
        return partial(probe, world, thread)
    if thread.does is Does.AWAIT and thread.doing is not None and world.now >= thread.doing.deadline:
        return partial(_say, thread, "lose")
    return None


def _thread_moves(world: World, thread: Thread) -> list[Move]:
    move = usual(world, thread)
    found: list[Move] = [] if move is None else [(f"{thread} {thread.does}", move)] * 3
    if thread.does in _REQUESTS:
        ways = (("lost", "deaf") if world.on("net") else ()) + (("slow",) if world.on("slow") and thread.snapshot is None else ())
        found += [(f"{thread} {thread.does} ({how})", partial(request, world, thread, how)) for how in ways]
    if thread.does is Does.SEND:
        # Left behind: the function ends while a task or thread of it still sends. Stopped: it has sent, and raises a stop or what another
        # request was answered.
        ways = ("mute", "hold", "refused", "broken", "left behind", "stopped") if world.on("send") else ()
        ways += ("hang",) if world.on("hang") else ()
        found += [(f"{thread} sends ({how})", partial(send, world, thread, how)) for how in ways]
    if thread.does is Does.PROBE and world.on("probe"):
        found.append((f"{thread} probes without leave", partial(probe, world, thread, leave=False)))
        found.append((f"{thread} cannot tell", partial(_cannot_tell, world, thread, give_up=False)))
        found.append((f"{thread} gives up probing", partial(_cannot_tell, world, thread, give_up=True)))
    if thread.does is Does.BEGIN and world.on("halt") and world.run.hold is None:
        found.append((f"{thread} halts the run", partial(_end, world, thread, calls.halt)))
        found.append((f"{thread} fails the run", partial(_end, world, thread, calls.fail_run)))
    return found


def _pod_moves(world: World, pod: Pod) -> list[Move]:
    found: list[Move] = []
    if all(thread.does is Does.STOPPED for thread in pod.threads):
        found.append((f"{pod.name} releases and exits", partial(leave, world, pod)))
    if pod.status is Status.RUNNING:
        if world.on("kill"):
            found.append((f"{pod.name} is killed", pod.die))
        if world.on("vanish"):
            found.append((f"{pod.name} vanishes alive", partial(_vanish, pod)))
        if world.on("erase"):
            found.append((f"{pod.name} is erased", partial(erase, pod)))
    return found


def _vanish(pod: Pod) -> None:
    pod.status = Status.GONE


def erase(pod: Pod) -> None:
    """The process ends and the object is gone before anybody saw its end."""
    pod.die()
    pod.status = Status.GONE


def leave(world: World, pod: Pod) -> None:
    """The worker's last call, and its exit."""
    try:
        world.execute(calls.release(pod.uid, pod.token))
    except Refused as refused:
        world.attempt_refused(refused)
    pod.die()


def _deliver(world: World, copy: LateCopy) -> None:
    world.copies.remove(copy)
    try:
        world.execute(copy.edit)
    except Refused as refused:
        world.attempt_refused(refused)


def land(world: World, flight: Flight) -> None:
    """A request lands; a worker that still waits gets the answer."""
    answer = world.land(flight)
    thread = flight.thread
    if not isinstance(thread, Thread) or thread.doing is None or not thread.pod.alive:
        return
    if thread.does is Does.AWAIT and (thread.doing.step, thread.doing.number) == (flight.step, flight.attempt):
        thread.doing.answer = answer
        _say(thread, "complete")


# --- requests to the gateway ----------------------------------------------------------------------------------------------


def request(world: World, thread: Thread, how: str) -> None:
    """Make the thread's next call: it works, is lost on the way (a copy may arrive late), loses its reply, or meets a slow replica."""
    if how == "slow":
        thread.snapshot = world.read()
        return
    thread.request_id = thread.request_id or world.fresh("request")
    thread.pod.heard_at = world.now
    edit = _edit(world, thread)
    if how in ("lost", "deaf") and len(world.copies) < _LATE_COPIES:
        world.copies.append(LateCopy(f"{thread} {thread.does}", edit))
    if how == "lost":
        thread.snapshot = None
        return
    entry = world.run.ledger.get(thread.step_id or "")
    snapshot, thread.snapshot = thread.snapshot, None
    answer: Any
    try:
        answer = world.execute(edit, snapshot)
    except Refused as refused:
        world.attempt_refused(refused)
        if thread.does is Does.REPORT and thread.doing is not None and thread.doing.word == "complete":
            world.book.refused_complete(entry, thread.doing.step, thread.doing.number, refused)
        answer = refused
    if how == "deaf":
        return
    thread.request_id = ""
    _HEARD[thread.does](world, thread, answer)


def _edit(world: World, thread: Thread) -> Edit:
    pod, doing = thread.pod, thread.doing
    if thread.does is Does.CLAIM:
        job = pod.job if world.scenario.decides else None
        return calls.claim(pod.name, pod.uid, thread.request_id, world.holder_fact, job)
    if thread.does is Does.BEGIN:
        return calls.begin(pod.uid, pod.token, thread.step_id or "", thread.request_id)
    if thread.does is Does.FINISH:
        return calls.finish(pod.uid, pod.token)
    if doing is None:
        raise AssertionError(f"{thread} has nothing to report")
    if thread.does is Does.PROBED and doing.asked_at is not None:
        result = None if doing.answer is None else _stored(doing.answer)
        return calls.probe(pod.uid, pod.token, doing.step.id, doing.number, doing.verdict, result, doing.asked_at, doing.give_up)
    if doing.word == "complete":
        return calls.complete(pod.uid, pod.token, doing.step.id, doing.number, _stored(doing.answer or "null"))
    report = calls.fail if doing.word == "fail" else calls.lose
    return report(pod.uid, pod.token, doing.step.id, doing.number)


def _stored(answer: str) -> Body:
    return body(parse(answer))


def _heard_claim(world: World, thread: Thread, answer: Any) -> None:
    if isinstance(answer, Refused):
        if answer.code is not Code.HOLDER_ALIVE:
            thread.does = Does.STOPPED
        return
    thread.pod.token = answer
    for other in thread.pod.threads:
        if other.does is Does.CLAIM:
            _next(other, 0)


def _heard_begin(world: World, thread: Thread, answer: Any) -> None:
    if isinstance(answer, Refused):
        if answer.retry_after is None:
            thread.does = Does.STOPPED
        return
    if answer.outcome is Go.WAIT:
        return
    if answer.outcome not in (Go.GO, Go.PROBE):
        _next(thread, thread.index + 1)
        return
    deadline = world.now + timedelta(seconds=answer.time_left)
    thread.doing = Attempted(answer.step, answer.entry.attempt, answer.entry.key, deadline)
    thread.does = Does.SEND if answer.outcome is Go.GO else Does.PROBE
    if answer.outcome is Go.GO:
        world.book.go(answer.step.id, answer.entry.attempt, str(thread))


def _heard_report(world: World, thread: Thread, answer: Any) -> None:
    if isinstance(answer, Refused):
        if answer.retry_after is None:
            thread.does = Does.STOPPED
        return
    if thread.doing is not None and thread.doing.word == "fail":
        world.book.failed(thread.doing.step.id, thread.doing.number)
    done = answer.state is State.DONE
    _next(thread, thread.index + (1 if done else 0))


def _heard_finish(world: World, thread: Thread, answer: Any) -> None:
    thread.does = Does.STOPPED


_HEARD = {
    Does.CLAIM: _heard_claim,
    Does.BEGIN: _heard_begin,
    Does.REPORT: _heard_report,
    Does.PROBED: _heard_report,
    Does.FINISH: _heard_finish,
}


def _next(thread: Thread, index: int) -> None:
    thread.index, thread.doing = index, None
    if thread.step_id is not None:
        thread.does = Does.BEGIN
        return
    others = [other for other in thread.pod.threads if other is not thread]
    thread.does = Does.FINISH if all(other.does is Does.STOPPED for other in others) else Does.STOPPED


def _end(world: World, thread: Thread, call: Callable[[str, int], Edit]) -> None:
    try:
        world.execute(call(thread.pod.uid, thread.pod.token))
    except Refused as refused:
        world.attempt_refused(refused)
    thread.does = Does.STOPPED


# --- the outside world ----------------------------------------------------------------------------------------------------


def send(world: World, thread: Thread, how: str) -> None:
    """Perform the step, even late: a process that was paused just before it sends does not look at its clock again."""
    doing = thread.doing
    if doing is None:
        raise AssertionError(f"{thread} has nothing to send")
    flight = Flight(doing.step, doing.number, doing.key, thread.pod.uid, doing.deadline, thread)
    if how == "refused":
        _say(thread, "fail")
        return
    in_time = world.now < world.bound(flight)
    if in_time and how in ("ok", "broken", "stopped"):
        doing.answer = world.land(flight)
    elif in_time:
        world.flights.append(flight)
    if how == "ok" and in_time:
        _say(thread, "complete")
    elif how in ("left behind", "stopped") and not world.rules.sure:
        _say(thread, "fail")
    elif how in ("hold", "hang"):
        thread.does = Does.AWAIT if how == "hold" else Does.HUNG
    else:
        _say(thread, "lose")


def _say(thread: Thread, word: str) -> None:
    if thread.doing is not None:
        thread.doing.word = word
    thread.does = Does.REPORT


def probe(world: World, thread: Thread, *, leave: bool = True) -> None:
    """Ask the provider what happened: with leave when it counts, without at once."""
    doing, pod = thread.doing, thread.pod
    if doing is None:
        raise AssertionError(f"{thread} has nothing to probe")
    if leave:
        try:
            wait = world.execute(calls.probe_leave(pod.uid, pod.token, doing.step.id, doing.number))
        except Refused as refused:
            world.attempt_refused(refused)
            _next(thread, thread.index)
            return
        if wait > 0:
            return
    doing.asked_at = world.now
    doing.answer = world.provider.look(doing.step.id)
    doing.verdict = Verdict.DID_NOT_HAPPEN if doing.answer is None else Verdict.HAPPENED
    thread.does = Does.PROBED


def _cannot_tell(world: World, thread: Thread, *, give_up: bool) -> None:
    if thread.doing is not None:
        thread.doing.asked_at, thread.doing.give_up = world.now, give_up
    thread.does = Does.PROBED
