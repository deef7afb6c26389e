"""What people write: `spec` of an AgentRun."""

from tools.generate_crds import fields
from tools.generate_crds.fields import Schema
from tools.generate_crds.steps import planned_step
from tools.generate_crds.template import pod_template

_RUN_ID = (
    "The run's identity, spent once in its namespace: another run with the same one fails and starts nothing. Without it each "
    "object is a run of its own."
)
_INPUT = "What the worker is given: free JSON, at most 64 KiB."
_PLAN = "The steps, when they are known beforehand; otherwise the worker submits them once, before its first step."
_TEMPLATE = (
    "The worker's pod, as in a Job. It may be changed: it holds for the next worker. `restartPolicy` is always `Never`; the "
    "run's identity, its token and the drain hook go into the container named by the annotation "
    "`kubectl.kubernetes.io/default-container`, else into the first."
)
_BACKOFF = "Workers in a row that may end without bringing any step to its end, before the run is given up."
_DEADLINE = "Time that the run may be active, before it is cancelled. The time that people take is not counted."
_HISTORY = "Jobs of past workers to keep, for their logs."
_SUSPEND = "Hold the run: nothing new begins and no worker is started until it is false again. For people, never in a manifest."
_CANCEL = (
    "End the run: nothing new begins, what is open is settled first. Once seen it stays in force, whatever is written "
    "here later. For people, never in a manifest."
)
_DECISIONS = (
    "Answers to open questions, each under the question's key in `status.questions`. An answer is written once. For people, "
    "never in a manifest."
)
_VERDICT = "`Approve` or `Deny` for an approval; `Happened`, `DidNotHappen` or `Abandon` for a doubt; `Resume` or `Abandon` for a hold."
_RESULT = "With `Happened`: the step's result, which the agent gets as if it had just been returned. Free JSON."
_FORCE = "With `DidNotHappen`: accept it although a request of an old attempt might still arrive."
_BY = "Who answers, as they say themselves: kept with the answer, not verified."


def decision() -> Schema:
    """One answer of a person."""
    answer = {
        "verdict": fields.choice(_VERDICT, fields.VERDICTS),
        "result": fields.free(_RESULT, 1024),
        "reason": fields.message("Why, for those who read it later."),
        "force": fields.flag(_FORCE),
        "by": fields.text(_BY, 256),
    }
    return fields.record("One answer.", answer, required=["verdict"])


def spec() -> Schema:
    """The whole spec."""
    steps = fields.listing("In order of the plan.", planned_step(), fields.MAX_STEPS, minimum=1)
    backoff = fields.integer(_BACKOFF, 0, 1000) | {"default": 6}
    history = fields.integer(_HISTORY, 0, 100) | {"default": 3}
    written = {
        "runID": fields.text(_RUN_ID, 63, minimum=1, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"),
        "input": fields.free(_INPUT, 1024),
        "plan": fields.record(_PLAN, {"steps": steps}, required=["steps"]),
        "template": pod_template(_TEMPLATE),
        "backoffLimit": backoff,
        "activeDeadlineSeconds": fields.integer(_DEADLINE, 1, 10 * fields.MAX_SECONDS),
        "workerHistoryLimit": history,
        "suspend": fields.flag(_SUSPEND),
        "cancel": fields.flag(_CANCEL),
        "decisions": fields.mapping(_DECISIONS, decision(), 256, atomic=False),
    }
    about = "What is wanted. All of it is immutable but `template`, `suspend`, `cancel` and `decisions`."
    return fields.record(about, written, required=["template"])
