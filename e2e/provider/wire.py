"""The JSON that the provider, its control routes and its typed client exchange."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

MAX_SECONDS = 3600.0
MAX_WAIT_SECONDS = 30.0


class Route(StrEnum):
    """The calls of the provider, as rules and the log name them."""

    READ_ORDER = "GET /orders/{id}"
    CREATE_REFUND = "POST /refunds"
    FIND_REFUNDS = "GET /refunds"
    CREATE_NOTIFICATION = "POST /notifications"
    FIND_NOTIFICATIONS = "GET /notifications"
    PUT_TICKET = "PUT /tickets/{id}"
    READ_TICKET = "GET /tickets/{id}"
    DELETE_RECORD = "DELETE /records/{id}"


class Happening(StrEnum):
    """What an entry of the log reports about one request."""

    REQUEST = "request"  # it arrived
    EFFECT = "effect"  # the world changed
    REPLAY = "replay"  # a known key: the first answer again, and no effect
    HANG = "hang"  # it waits for a release
    RELEASE = "release"  # it goes on
    DROP = "drop"  # its connection was cut, no answer
    ANSWER = "answer"  # answered with `status`


class Strict(BaseModel):
    """Refuses fields that it does not know: a misspelt fault would make a test pass for nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Match(Strict):
    """Which requests a rule is for: each field that is given must be equal."""

    route: Route
    key: str | None = None
    run: str | None = None
    step: str | None = None
    skip: Annotated[int, Field(ge=0)] = 0  # let this many matching requests pass first
    count: Annotated[int, Field(ge=1)] | None = 1  # then act on this many; null: on all


class Fault(Strict):
    """What goes wrong at one side of the effect, in this order: delay, hang, then one of drop and status.

    A hang ends by a release; after `MAX_SECONDS` the connection is cut.
    """

    delay_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] = 0.0
    hang: bool = False
    drop: bool = False
    status: Annotated[int, Field(ge=400, le=599)] | None = None

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.drop and self.status is not None:
            raise ValueError("drop and status exclude each other: a cut connection carries no status")
        return self


class Rule(Strict):
    """One instruction. Of several that match a request, the oldest that is not used up acts."""

    match: Match
    before: Fault = Fault()  # a status or a drop here prevents the effect
    after: Fault = Fault()
    honour_key: bool = True


class RuleState(BaseModel):
    """A rule and what has become of it."""

    id: int
    rule: Rule
    seen: int  # matching requests, with the skipped ones
    applied: int
    hanging: int  # requests that hang in it now


class Release(Strict):
    """Which hanging calls go on: those of one rule, or all."""

    rule: int | None = None


class Entry(BaseModel):
    """One line of the log. `request` numbers the request that it belongs to."""

    seq: int
    time: datetime  # UTC
    happening: Happening
    request: int
    route: Route
    target: str | None = None  # the id in the path
    key: str | None = None
    run: str | None = None
    step: str | None = None
    pod: str | None = None
    status: int | None = None
    body: JsonValue = None  # of a request: what was sent; of an effect: what came to be
    at: Literal["before", "after"] | None = None  # of hang, release, drop


class LogPage(BaseModel):
    """Entries after the asked sequence number, oldest first."""

    entries: list[Entry]
    last: int


class RefundRequest(BaseModel):
    """Body of `POST /refunds`; `amount` in the smallest unit of the currency."""

    model_config = ConfigDict(extra="allow")

    order: Annotated[str, Field(min_length=1, max_length=100)]
    amount: Annotated[int, Field(ge=1)]
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "EUR"


class NotificationRequest(BaseModel):
    """Body of `POST /notifications`."""

    model_config = ConfigDict(extra="allow")

    to: Annotated[str, Field(min_length=1, max_length=200)]
    text: Annotated[str, Field(max_length=10_000)]


class TicketRequest(BaseModel):
    """Body of `PUT /tickets/{id}`."""

    model_config = ConfigDict(extra="allow")

    status: Annotated[str, Field(min_length=1, max_length=100)]


JsonObject = dict[str, Any]
