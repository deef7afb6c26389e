"""The worker's routes as use cases, one async function each; shared by the gateway, `stepfence.testing` and any other way in.

Every call names the caller's pod as the API server vouches for it. Every function raises `Refused`, `Conflict` or `Unknown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from stepfence.app.apply import Applied, Applier, Edit, T, remaining_bytes
from stepfence.app.bodies import Bodies, Brought, Result
from stepfence.app.callers import Callers
from stepfence.app.proofs import TokenProofs
from stepfence.app.recorded import NotRead, Payloads, Recorded, told
from stepfence.app.views import BeginView, ClaimView, Remaining, ResultView, Standing, StepView, Stop
from stepfence.core import fencing, ledger, lifecycle, plan, reports
from stepfence.core.canonical import Json, parse
from stepfence.core.errors import Code, Conflict, Refused
from stepfence.core.fencing import HolderFact, Release
from stepfence.core.model import Body, Entry, Holder, Plan, Run, StepSpec
from stepfence.core.reports import Report
from stepfence.core.summary import phase_of, questions_of
from stepfence.core.words import At, Outcome, State, Verdict
from stepfence.ports import Caller, RecordStore, RunKey, Stored, WorkerGate, Write

__all__ = ["Call", "Ending", "WorkerCalls"]

_CLAIM_TRIES = 5
_BEGIN_TRIES = 5
Ending = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls, about which run, under which fencing token. `proof`: what the claim answered beside the token."""

    caller: Caller
    key: RunKey
    token: int
    proof: str | None = None


class WorkerCalls:
    """The use cases of a worker."""

    def __init__(self, applier: Applier, records: RecordStore, gate: WorkerGate, proofs: TokenProofs | None = None) -> None:
        self._applier, self._gate, self._proofs = applier, gate, proofs or TokenProofs()
        self._callers = Callers(applier, gate)
        self._settings = applier.settings
        self._bodies = Bodies(records, applier.settings)

    @property
    def lease_seconds(self) -> int:
        """Seconds that a claim's lease lasts."""
        return self._settings.lease

    def standing(self, key: RunKey) -> Standing | None:
        """Return where the run stood when it was last seen; None when it was not."""
        stored = self._applier.known(key)
        if stored is None:
            return None
        at = self._applier.at()
        patches = {question.key: question.patch for question in questions_of(stored.run, at)}
        return Standing(stored.run.token, phase_of(stored.run, at).value, patches)

    async def works_for(self, caller: Caller, key: RunKey) -> bool:
        """Whether the pod is a worker of that run: by its owners, or by the run's own word once they are gone. Raises `Unknown`."""
        return await self._callers.works_for(caller, key)

    async def claim(self, caller: Caller, key: RunKey, request_id: str) -> ClaimView:
        """Take the run for the calling pod, which must be the pod of the run's current worker.

        What the answer needs is read first: a claim that cannot be answered changes nothing.
        """
        identity, recorded = await self._gate.worker_of(caller), Recorded(self._bodies)
        for _ in range(_CLAIM_TRIES):
            stored = await self._applier.read(key)
            run = stored.run
            if identity is None or identity.run_uid != run.uid or run.worker is None or identity.job != run.worker.job:
                raise Refused(Code.FORBIDDEN, "this pod is not the run's current worker")
            if run.spec.problems:  # it began under other limits: no worker may take what is left of its input for the whole
                raise Refused(Code.BAD_REQUEST, "; ".join(run.spec.problems), field="spec")
            claim = fencing.Claim(caller.pod, caller.pod_uid, request_id, self._settings.lease)
            edit = _claiming(claim, run.holder, await self._gate.holder(run))
            edit(run, self._applier.at())  # who waits for an older pod asks often: nothing is read for an answer that will be no
            await recorded.gather(run)
            try:
                applied = await self._applier.apply(key, edit)
            except Conflict:
                continue
            # What was reported meanwhile too: should it be out of reach now, a repeat of this claim is answered, under the same token.
            await recorded.gather(applied.stored.run)
            return await self._claim_view(applied.stored, recorded)
        raise Conflict("the run is being claimed by others")

    async def _claim_view(self, stored: Stored, recorded: Recorded) -> ClaimView:
        run, at = stored.run, self._applier.at()
        return ClaimView(
            token=run.token,
            token_proof=self._proofs.of(run.uid, run.token),
            run_id=run.identity,
            namespace=run.namespace,
            name=run.name,
            uid=run.uid,
            phase=phase_of(run, at).value,
            input=parse(run.spec.input) if run.spec.input is not None else None,
            plan=run.plan,
            ledger={step: recorded.view(entry) for step, entry in run.ledger.items()},
            lease_seconds=self._settings.lease,
            margin_seconds=self._settings.margin,
            remaining=self._remaining(stored),
            stop=stop_of(run, at),
        )

    def _remaining(self, stored: Stored) -> Remaining:
        status_size = len(str(stored.raw))
        write = Write(stored, stored.run, stored.raw, stored.base_bytes + status_size)
        steps = len(stored.run.plan.steps) if stored.run.plan else 0
        return Remaining(max(0, remaining_bytes(write, self._settings)), self._settings.max_steps - steps)

    async def submit_plan(self, call: Call, steps: Sequence[StepSpec]) -> Plan:
        """Record the worker's plan, once, or an append to it."""

        def edit(run: Run, at: At) -> tuple[Run, Plan]:
            fencing.require_token(run, call.token, call.caller.pod_uid)
            known = run.plan is not None and tuple(steps) == run.plan.steps[: len(steps)]
            if not known:
                lifecycle.require_active(run, at)
            changed, answer = plan.submit(run, steps, at)
            return changed, answer.plan

        return (await self._write(call, edit, reserve=True)).answer

    async def begin(self, call: Call, step: str, request_id: str, payload: Json) -> BeginView:
        """Begin a step: the intent is stored when this answers Go (I1)."""
        brought = self._bodies.payload(self._bodies.measure(payload, field="payload"))
        recorded = Payloads(self._bodies, brought.whole)

        def edit(current: Run, at: At) -> tuple[Run, ledger.BeginAnswer]:
            begin = ledger.Begin(step, call.token, call.caller.pod_uid, request_id, brought.on(current))
            after, answer = ledger.begin(current, begin, at)
            if recorded.lost(current, answer):
                raise ledger.payload_lost(current, begin, answer, at)
            return after, answer

        for _ in range(_BEGIN_TRIES):
            try:
                applied = await self._write(call, edit, reserve=True, bodies=brought)
            except NotRead as unread:
                await recorded.gather(unread)
                continue
            return await self._begin_view(applied.stored.run, applied.answer, recorded)
        raise Conflict(f"step {step!r} is recorded with other payloads each time")

    async def _begin_view(self, run: Run, answer: ledger.BeginAnswer, payloads: Payloads) -> BeginView:
        entry = answer.entry
        return BeginView(
            outcome=answer.outcome.value,
            step=await told(self._bodies, run, entry),
            key=entry.key,
            attempt=entry.attempt,
            payload=payloads.value(answer),
            payload_digest=entry.payload.digest if entry.payload is not None else payloads.brought.digest,
            payload_changed=answer.payload_changed,
            timeout_seconds=answer.step.timeout,
            time_left_seconds=answer.time_left,
            retry_after_seconds=answer.retry_after,
            reason=entry.reason,
            image=run.spec.image,
        )

    async def complete(self, call: Call, step: str, attempt: int, result: Json, *, omitted: tuple[str, int] | None = None) -> StepView:
        """Record the truth that an attempt succeeded, also under an old token (R13); the result is stored before the ledger says so.

        `omitted`: digest and size (bytes) of a result that was too large to send.
        """
        brought = self._bodies.result(self._bodies.measure(result, field="result") if omitted is None else Body(*omitted))
        try:
            return await self._complete(call, step, attempt, brought)
        except Refused as refused:
            if refused.code is not Code.HELD:
                raise
            # No hold stops a report. The store went back in time, which is recorded now: what stands there may hold this attempt.
            return await self._complete(call, step, attempt, brought)

    async def _complete(self, call: Call, step: str, attempt: int, brought: Result) -> StepView:
        def edit(run: Run, at: At) -> tuple[Run, Entry]:
            return reports.complete(run, Report(step, attempt, call.token, call.caller.pod_uid), brought.on(run, done=[step]), at)

        return await self._settle(call, edit, brought)

    async def fail(
        self,
        call: Call,
        step: str,
        attempt: int,
        reason: str,
        message: str,
        *,
        final: bool = False,
        retry_after: float | None = None,
    ) -> StepView:
        """Record that an attempt surely did not happen."""

        def edit(run: Run, at: At) -> tuple[Run, Entry]:
            report = Report(step, attempt, call.token, call.caller.pod_uid)
            return reports.fail(run, report, reason, message, final=final, retry_after=retry_after, at=at)

        return await self._settle(call, edit)

    async def lose(self, call: Call, step: str, attempt: int, reason: str, message: str) -> StepView:
        """Record that nobody can tell whether an attempt happened."""

        def edit(run: Run, at: At) -> tuple[Run, Entry]:
            return reports.lose(run, Report(step, attempt, call.token, call.caller.pod_uid), reason, message, at)

        return await self._settle(call, edit)

    async def probe_leave(self, call: Call, step: str, attempt: int) -> tuple[datetime, float]:
        """Return the time that a probe started now is asked as of, and how many seconds it must still wait before that counts (R2)."""

        def edit(run: Run, at: At) -> tuple[Run, tuple[datetime, float]]:
            return run, (at.now, reports.probe_leave(run, Report(step, attempt, call.token, call.caller.pod_uid), at))

        return (await self._write(call, edit)).answer

    async def probe(
        self,
        call: Call,
        step: str,
        attempt: int,
        verdict: Verdict | None,
        result: Json,
        *,
        as_of: datetime,
        give_up: bool,
    ) -> StepView:
        """Record a probe's answer. `as_of` is what `probe_leave` answered before the probe was started."""
        brought = self._bodies.result(self._bodies.measure(result, field="result"))

        def edit(current: Run, at: At) -> tuple[Run, Entry]:
            report = Report(step, attempt, call.token, call.caller.pod_uid)
            kept = brought.on(current, done=[step]) if verdict is Verdict.HAPPENED else None
            return reports.probe(current, report, verdict, kept, asked_at=as_of, give_up=give_up, at=at)

        return await self._settle(call, edit, brought)

    async def _settle(self, call: Call, edit: Edit[Entry], brought: Result | None = None) -> StepView:
        applied = await self._write(call, edit, urgent=True, bodies=brought)
        at_hand = None if brought is None else brought.whole
        return await told(self._bodies, applied.stored.run, applied.answer, at_hand)

    async def renew(self, call: Call) -> Stop | None:
        """Renew the lease of an idle worker, outside the hot object while its Job stands; answer why it must stop, if it must."""
        stored = await self._applier.read(call.key)
        if call.token > stored.run.token:
            await self._renew_inside(call)  # refuses it, and holds the run when the token was given by a server
        fencing.require_token(stored.run, call.token, call.caller.pod_uid)
        if await self._gate.worker_of(call.caller) is None:
            await self._renew_inside(call)  # its Job is gone, and a Lease would go with it
        else:
            await self._gate.renew(stored.run, call.caller)
        return stop_of(stored.run, self._applier.at())

    async def _renew_inside(self, call: Call) -> None:
        def edit(run: Run, at: At) -> tuple[Run, None]:
            fencing.require_token(run, call.token, call.caller.pod_uid)
            return renewed(run, call.caller, at), None

        await self._write(call, edit)

    async def drain(self, call: Call) -> None:
        """Set draining: the worker begins nothing new."""

        def edit(run: Run, at: At) -> tuple[Run, None]:  # noqa: ARG001  (every edit has this shape)
            fencing.require_token(run, call.token, call.caller.pod_uid)
            return fencing.drain(run), None

        await self._write(call, edit, urgent=True)

    async def release(self, call: Call, reason: Release) -> None:
        """Let the run go; what is in flight becomes Unknown in the same write. A repeated release changes nothing."""

        def edit(run: Run, at: At) -> tuple[Run, None]:
            if call.token == run.token and run.holder is None:
                return run, None
            fencing.require_token(run, call.token, call.caller.pod_uid)
            return fencing.release(run, reason, at), None

        await self._write(call, edit, urgent=True)

    async def finish(self, call: Call, result: Json) -> str:
        """Record success; repeated, it answers the recorded outcome."""
        brought = self._bodies.result(self._bodies.measure(result, field="result"))

        def edit(current: Run, at: At) -> tuple[Run, Outcome | None]:
            fencing.require_token(current, call.token, call.caller.pod_uid)
            if current.outcome is Outcome.SUCCEEDED:
                return current, current.outcome
            if current.terminal:
                raise Refused(Code.TERMINAL, f"the run is {current.outcome}")
            done = lifecycle.finish(current, brought.on(current), at)
            return done, done.outcome

        outcome = (await self._write(call, edit, urgent=True, bodies=brought)).answer
        return outcome.value if outcome else ""

    async def fail_run(self, call: Call, reason: str, message: str) -> Ending:
        """Stop every further begin. Returns the outcome, and whether it is recorded already (else a step is still open)."""

        def edit(run: Run, at: At) -> tuple[Run, None]:
            fencing.require_token(run, call.token, call.caller.pod_uid)
            return lifecycle.fail_run(run, reason, message, at), None

        run = (await self._write(call, edit, urgent=True)).stored.run
        outcome = run.outcome or (run.ending.outcome if run.ending else Outcome.FAILED)
        return outcome.value, run.terminal

    async def halt_run(self, call: Call, reason: str, message: str) -> tuple[str, str]:
        """Open a question about the run itself. Returns its key and the command that answers it."""

        def edit(run: Run, at: At) -> tuple[Run, tuple[str, str]]:
            fencing.require_token(run, call.token, call.caller.pod_uid)
            halted = lifecycle.halt_run(run, reason, message, at)
            first = questions_of(halted, at)[0]
            return halted, (first.key, first.patch)

        return (await self._write(call, edit, urgent=True)).answer

    async def result(self, caller: Caller, key: RunKey, step: str) -> ResultView:
        """Return the stored result of a Done step to the pod that holds the run."""
        run = (await self._applier.read(key)).run
        if run.holder is None or run.holder.pod_uid != caller.pod_uid:
            raise Refused(Code.FORBIDDEN, "this pod does not hold the run")
        entry = run.ledger.get(step)
        if entry is not None and entry.state is State.DONE and entry.result is not None:
            body, value = await self._bodies.recall(run, entry.result)
            if body.stored:
                return ResultView(value, body.digest, body.size)
        raise Refused(Code.NOT_FOUND, f"step {step!r} has no stored result")

    async def _write(
        self, call: Call, edit: Edit[T], *, urgent: bool = False, reserve: bool = False, bodies: Brought | None = None
    ) -> Applied[T]:
        identity = await self._gate.worker_of(call.caller)

        def with_lease(run: Run, at: At) -> tuple[Run, T]:
            mine = fencing.vouches(run, call.caller.pod_uid) if identity is None else identity.run_uid == run.uid
            if not mine:
                # Before its token is looked at: it says nothing of this run, least of all that the store went back in time.
                raise Refused(Code.NOT_FOUND, "the run of this pod is gone: another one has its name")
            if call.token > run.token:
                raise self._ahead(call, run, at)
            changed, answer = edit(run, at)
            return (renewed(changed, call.caller, at) if changed != run else run), answer

        return await self._applier.apply(call.key, with_lease, urgent=urgent, reserve=reserve, bodies=bodies)

    def _ahead(self, call: Call, run: Run, at: At) -> Refused:
        """Return the answer to a token that is newer than the stored one: a worker alone can name any, so it must show who gave it."""
        if not self._proofs.shown(call.proof, run.uid, call.token):
            made_up = f"token {call.token} is newer than the stored one ({run.token}), and nothing shows that it was given"
            return Refused(Code.FENCED, made_up)
        behind = f"token {call.token} is newer than the stored one ({run.token}): the store went back in time"
        return ledger.RefusedAfter(Refused(Code.HELD, behind), lifecycle.hold_behind(run, behind, at, anew=False))


def _claiming(claim: fencing.Claim, seen: Holder | None, fact: HolderFact) -> Edit[bool]:
    def edit(run: Run, at: At) -> tuple[Run, bool]:
        if run.holder != seen:
            raise Conflict("another pod claimed the run meanwhile: what is known of the holder is not about this one")
        return fencing.claim(run, claim, fact, at)

    return edit


def renewed(run: Run, caller: Caller, at: At) -> Run:
    """Any ledger write of the holder renews its lease."""
    if run.holder is None or run.holder.pod_uid != caller.pod_uid:
        return run
    return replace(run, holder=replace(run.holder, renewed_at=at.now))


def stop_of(run: Run, at: At) -> Stop | None:
    """Return why the worker must stop, if it must."""
    try:
        lifecycle.require_active(run, at)
    except Refused as refused:
        return Stop(refused.code.value, refused.detail)
    return None
