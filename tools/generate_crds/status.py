"""What is recorded of a run: its `status`. Written by the operator alone."""

from tools.generate_crds import fields
from tools.generate_crds.fields import Schema
from tools.generate_crds.ledger import answer, body, entry
from tools.generate_crds.steps import recorded_step

_PHASE = "For people; derived from all the rest and never read back by the operator."
_TOKEN = "Number of the current claim. Only its holder may write; it never shrinks."
_LEDGER = "The record of each step that was begun, by step id."
_QUESTIONS = "What waits for a person, by key: `<step>.<id>`, or `run.<id>` for a hold. Answer it under the same key in `spec.decisions`."
_SINCE = "When the clock last started to count; absent while the run waits for people, is held, or is finished."
_ENDING = "An end that is decided while a step is still open: the run ends when all are settled."
_HOLD = "A stop of the whole run that only a person lifts."
_ACCEPTS = "Whether `DidNotHappen` counts yet: no request of an old attempt can arrive any more."
_PATCH = "The command that answers the question, ready to paste; change the verdict as needed."
_TERMINATED = "Whether the worker's end is confirmed."


def _summary() -> dict[str, Schema]:
    return {
        "observedGeneration": fields.integer("Generation of the spec that this status speaks of; -1 before the first.", -1),
        "phase": fields.choice(_PHASE, fields.PHASES),
        "progress": fields.text("Steps done of steps planned, as `1/3`.", 16),
        "openStep": fields.text("The step that is in flight, in doubt or awaits approval.", 128),
        "version": fields.integer("Counts the writes of this record; it never shrinks."),
        "runID": fields.text("The run's full identity: it never changes.", 253),
        "fencingToken": fields.integer(_TOKEN),
        "startedAt": fields.time("When the run was accepted."),
        "activeMilliseconds": fields.integer("Active time used up before `activeSince`."),
        "activeSince": fields.time(_SINCE),
    }


def _end() -> dict[str, Schema]:
    ending = {
        "outcome": fields.choice("How it will end.", ["Failed", "Cancelled"]),
        "reason": fields.reason("Why, in a word."),
        "message": fields.message("Why, in a sentence."),
        "at": fields.time("When it was decided."),
    }
    return {
        "outcome": fields.choice("How the run ended. Final.", fields.OUTCOMES),
        "reason": fields.reason("Why it ended so, in a word."),
        "message": fields.message("Why it ended so, in a sentence."),
        **body("run"),
        "finishedAt": fields.time("When it ended."),
        "cancelRequestedAt": fields.time("When a cancel was first seen: it never changes."),
        "ending": fields.record(_ENDING, ending, required=["outcome", "at"]),
    }


def _hold() -> dict[str, Schema]:
    hold = {
        "question": fields.text("Id of the question `run.<id>`.", 32, pattern=fields.QUESTION_ID),
        "reason": fields.reason("Why, in a word."),
        "message": fields.message("Why, in a sentence."),
        "since": fields.time("Since when."),
    }
    return {
        "hold": fields.record(_HOLD, hold, required=["question", "since"]),
        "holdAnswers": fields.listing("Answers to holds that are over, newest last.", answer(), 16),
    }


def _worker() -> Schema:
    worker = {
        "number": fields.integer("Number of the worker in its run; never used twice.", 1),
        "job": fields.text("Its Job.", 63),
        "podUID": fields.uid("its pod"),
        "templateHash": fields.text("Hash of the template that it was made from.", 128),
        "startedAt": fields.time("When its number was taken."),
        "progressed": fields.flag("Whether it brought a step to its end."),
        "exitReason": fields.reason("How it ended."),
        "message": fields.message("How it ended, in a sentence."),
        "failures": fields.integer("Workers in a row that brought no step to its end."),
        "retryAt": fields.time("The next worker is not started before this."),
        "endedAt": fields.time("When it ended."),
    }
    return fields.record("The current or last worker.", worker, required=["number"])


def _worker_problem() -> Schema:
    problem = {"reason": fields.reason("What, in a word."), "message": fields.message("What, in a sentence.")}
    about = "Why the current worker does not come up or does not answer; absent when nothing is wrong."
    return fields.record(about, problem, required=["reason"])


def _holder() -> Schema:
    holder = {
        "pod": fields.text("Name of the pod.", 253),
        "podUID": fields.uid("the pod"),
        "requestID": fields.text("Id of the claim request.", 64, minimum=1, pattern=fields.REQUEST_ID),
        "claimedAt": fields.time("When it claimed the run."),
        "renewedAt": fields.time("When it was last heard of."),
        "leaseSeconds": fields.integer("How long it may be silent.", 1, 86_400),
        "draining": fields.flag("It was told to go: it begins nothing new."),
    }
    about = "The pod that made the current claim; absent when nobody holds the run."
    return fields.record(about, holder, required=["podUID", "requestID"])


def _plan() -> Schema:
    plan = {
        "digest": fields.digest("the plan"),
        "acceptedAt": fields.time("When it was recorded, before the first step."),
        "source": fields.choice("Who brought it.", fields.PLAN_SOURCES),
        "initialSteps": fields.integer("Steps that stood in it when it was accepted; later ones were appended.", 0, 256),
        "steps": fields.listing("All steps. The list grows at its end only.", recorded_step(), fields.MAX_STEPS),
    }
    return fields.record("The plan that is in force.", plan, required=["steps"])


def _question() -> Schema:
    question = {
        "step": fields.text("Step that it is about; `run` for a hold.", 63),
        "kind": fields.choice("`Reconcile` (did it happen?), `Approve` or `Hold`.", ["Reconcile", "Approve", "Hold"]),
        "since": fields.time("Since when it is open."),
        "reason": fields.reason("Why it is asked, in a word."),
        "message": fields.message("Why it is asked, in a sentence."),
        "payload": fields.text("What is or was to be done, when it is kept inline.", fields.INLINE_LENGTH),
        "payloadDigest": fields.digest("the payload"),
        "workerTerminated": fields.flag(_TERMINATED),
        "acceptsDidNotHappen": fields.flag(_ACCEPTS),
        "patch": fields.text(_PATCH, 2048),
    }
    return fields.record("One open question.", question, required=["step", "kind", "since"])


def _condition() -> Schema:
    condition = {
        "type": fields.text("Its name.", 316, minimum=1),
        "status": fields.choice("Whether it holds.", ["True", "False", "Unknown"]),
        "observedGeneration": fields.integer("Generation of the spec that it speaks of.", -1),
        "lastTransitionTime": fields.time("When `status` last changed."),
        "reason": fields.text("Why, in a word.", 1024, minimum=1),
        "message": fields.text("Why, in a sentence.", 32_768),
    }
    needs = ["type", "status", "lastTransitionTime", "reason", "message"]
    return fields.record("One condition.", condition, required=needs)


def _conditions() -> Schema:
    about = "`Ready`, `Reconciling`, `Stalled`, `Finished`, `WorkerReady`, `DecisionNeeded`, `LedgerWritable`."
    keyed: Schema = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return fields.listing(about, _condition(), 16) | keyed


def status() -> Schema:
    """The whole status."""
    recorded = {
        **_summary(),
        **_end(),
        **_hold(),
        "worker": _worker(),
        "workerProblem": _worker_problem(),
        "holder": _holder(),
        "plan": _plan(),
        "ledger": fields.mapping(_LEDGER, entry(), fields.MAX_STEPS, atomic=True),
        # One for each step, and a hold.
        "questions": fields.mapping(_QUESTIONS, _question(), fields.MAX_STEPS + 1, atomic=True),
        "conditions": _conditions(),
    }
    about = "What is recorded of the run. Written by the operator alone."
    # Without the default a run that was just created would count as reconciled by tools that follow kstatus,
    # and have no phase to be shown or selected by.
    return fields.record(about, recorded) | {"default": {"observedGeneration": -1, "phase": "Pending"}}
