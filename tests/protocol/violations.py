"""What must never be seen, whatever the interleaving."""


class Violation(AssertionError):
    """The promise is broken. `kind` is stable: tests of the rules name the kind that they expect."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


DOUBLE_EFFECT = "two effects without leave"
LOST_ORDER = "an older Upsert landed over a later one"
FALSE_FAILED = "recorded as not done, but it happened"
FALSE_RESULT = "Done with a result that the provider never gave"
LOST_TRUTH = "a true result was refused"
WRONG_ANSWER = "an answer was applied to another question"
STALE_APPROVAL = "begun under an approval that is over"
NOT_ACTIVE = "begun in a run that may begin nothing"
SHARED_ATTEMPT = "one attempt was given to two callers"
ENDED_OPEN = "a run ended with a step in doubt"
NOT_FINAL = "what is final changed"
NOT_MONOTONE = "what only grows shrank"
NEEDLESS = "a person was asked what a machine may settle"
STUCK = "a history that cannot be driven to an end"
