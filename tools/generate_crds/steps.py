"""The fields of a planned step, as people write it and as it is recorded."""

from tools.generate_crds import fields
from tools.generate_crds.fields import Schema

DEFAULT_TIMEOUT_SECONDS = 60

# Defaults inside lists are applied by the operator, not by the API server: a server-side default in a list that is written
# as a whole makes `kubectl apply` see a difference each time. The recorded plan shows the values in force.
_TIMEOUT = "How long one attempt may take, from before its first begin request to its end. Default: 60."
_SETTLE = (
    "How long after its pod has ended a request of an attempt may still reach the provider. Only after that, or after "
    "the deadline, `DidNotHappen` counts. Default: 10."
)
_ATTEMPTS = "Beginnings after a sure failure; a doubt never counts as one. Default: 1."
_BACKOFF = "Wait before the second attempt; doubled for each later one. Default: 1."
_KEY_LIFE = "How long the provider honours an idempotency key, from its first use. Needed for `ResendWithKey`."
_APPROVAL = "A person must approve the step before it begins. A `Delete` waits for approval without it too."
_EXPIRES = "The approval is void this long after it was given, and is asked for again. Default: it does not expire."
_PROBE = "The worker can ask the provider, without changing anything, whether the action with the step's key happened."
_GIVE_UP = "Time after which a probe that cannot tell gives up, and a person is asked. Default: 300."


def _recovery(default: str) -> Schema:
    sentence = (
        "Who settles a doubt: `Rerun` does it again, `Probe` asks the provider, `Halt` asks a person, `ResendWithKey` sends "
        f"it again under the same key while the provider honours it.{default}"
    )
    return fields.choice(sentence, fields.RECOVERIES)


def _action(default: str) -> Schema:
    sentence = f"The kind of action, which says what may safely happen twice.{default}"
    return fields.choice(sentence, fields.ACTIONS)


def _settings() -> dict[str, Schema]:
    seconds = fields.MAX_SECONDS
    return {
        "timeoutSeconds": fields.integer(_TIMEOUT, 1, 86_400),
        "settleSeconds": fields.integer(_SETTLE, 0, 86_400),
        "attempts": fields.integer(_ATTEMPTS, 1, 100),
        "backoffSeconds": fields.integer(_BACKOFF, 0, 86_400),
        "idempotencyKeyTTLSeconds": fields.integer(_KEY_LIFE, 1, seconds),
        "approval": fields.record(_APPROVAL, {"expiresAfterSeconds": fields.integer(_EXPIRES, 1, seconds)}),
        "probe": fields.record(_PROBE, {"giveUpAfterSeconds": fields.integer(_GIVE_UP, 1, seconds)}),
    }


def planned_step() -> Schema:
    """A step of `spec.plan`."""
    recovery = (
        " Default: `Probe` with a `probe`, else `Rerun` for Read and Upsert, `Halt` for Create, Payment and Delete. "
        "It may be looser than the default here, where a person wrote it."
    )
    step = {
        "id": fields.step_id("Names the step for good: ledger, questions and idempotency key follow it. `run` is taken."),
        "action": _action(" Default: `Create`."),
        "recovery": _recovery(recovery),
    }
    return fields.record("One external action.", step | _settings(), required=["id"])


def recorded_step() -> Schema:
    """A step of `status.plan`: every value is the one in force."""
    step = {
        "id": fields.step_id("The step's id."),
        "action": _action(""),
        "recovery": _recovery(""),
    }
    return fields.record("One step with the values in force.", step | _settings(), required=["id", "action", "recovery"])
