"""The provider's routes: the business ones, and the control and log routes that tests use."""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import Body, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse

from .journal import Caller, Journal, LogFullError
from .rules import Rules
from .wire import (
    MAX_SECONDS,
    MAX_WAIT_SECONDS,
    Fault,
    Happening,
    JsonObject,
    LogPage,
    NotificationRequest,
    RefundRequest,
    Release,
    Route,
    Rule,
    RuleState,
    TicketRequest,
)

KEY_REUSED = 422
LOG_FULL = 507


class Provider:
    """The provider's world: what exists in it, its rules, its log."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.rules = Rules()
        self.refunds: list[JsonObject] = []
        self.notifications: list[JsonObject] = []
        self.tickets: dict[str, JsonObject] = {}
        self.deleted: dict[str, int] = {}
        self._answers: dict[tuple[Route, str], tuple[str, int, JsonObject]] = {}

    async def call(
        self,
        request: Request,
        route: Route,
        effect: Callable[[Caller], tuple[int, JsonObject]],
        *,
        target: str | None = None,
        body: JsonObject | None = None,
    ) -> Response:
        """Handle one business call: log it, do as the rules say, and let the effect happen at most once."""
        caller = Caller(self.journal.next_request(), route, target, dict(request.headers))
        await self.journal.add(Happening.REQUEST, caller, body=body)
        rule, hanging = self.rules.take(caller)
        stopped = await self._suffer("before", rule.before, hanging, caller, request)
        if stopped is not None:
            return stopped
        status, answer = await self._happen(caller, rule.honour_key, effect, body)
        stopped = await self._suffer("after", rule.after, hanging, caller, request)
        if stopped is not None:
            return stopped
        await self.journal.add(Happening.ANSWER, caller, status=status)
        return JSONResponse(answer, status)

    async def _happen(
        self,
        caller: Caller,
        honour_key: bool,
        effect: Callable[[Caller], tuple[int, JsonObject]],
        body: JsonObject | None,
    ) -> tuple[int, JsonObject]:
        """Nothing is awaited between the look at the key and the effect: two calls with one key cannot both pass."""
        reads = caller.route.startswith("GET")
        slot = None if reads or caller.key is None or not honour_key else (caller.route, caller.key)
        sent = json.dumps([caller.target, body], sort_keys=True)
        if slot is not None and slot in self._answers:
            first_sent, status, answer = self._answers[slot]
            if first_sent != sent:
                return KEY_REUSED, {"error": "this Idempotency-Key was used for another request"}
            await self.journal.add(Happening.REPLAY, caller, body=answer)
            return status, answer
        status, answer = effect(caller)
        if slot is not None:
            self._answers[slot] = (sent, status, answer)
        if not reads:
            await self.journal.add(Happening.EFFECT, caller, body=answer)
        return status, answer

    async def _suffer(
        self,
        at: Literal["before", "after"],
        fault: Fault,
        hanging: set[asyncio.Future[bool]],
        caller: Caller,
        request: Request,
    ) -> Response | None:
        """Do what the fault says. Returns the answer that ends the call, or None when it goes on."""
        if fault.delay_seconds:
            await asyncio.sleep(fault.delay_seconds)
        goes_on = not fault.hang or await self._hang(at, hanging, caller)
        if fault.drop or not goes_on:
            await self.journal.add(Happening.DROP, caller, at=at)
            return _cut(request)
        if fault.status is not None:
            await self.journal.add(Happening.ANSWER, caller, status=fault.status, at=at)
            return JSONResponse({"error": f"told to fail {at} the effect"}, fault.status)
        return None

    async def _hang(self, at: Literal["before", "after"], hanging: set[asyncio.Future[bool]], caller: Caller) -> bool:
        released: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        hanging.add(released)
        await self.journal.add(Happening.HANG, caller, at=at)
        try:
            async with asyncio.timeout(MAX_SECONDS):
                goes_on = await released
        except TimeoutError:
            return False
        finally:
            hanging.discard(released)
        if goes_on:
            await self.journal.add(Happening.RELEASE, caller, at=at)
        return goes_on

    def refund(self, caller: Caller, wanted: RefundRequest) -> tuple[int, JsonObject]:
        """Pay money back. Each call makes another refund."""
        made = {"id": f"re_{len(self.refunds) + 1}", **wanted.model_dump(), "key": caller.key}
        self.refunds.append(made)
        return 201, made

    def notify(self, caller: Caller, wanted: NotificationRequest) -> tuple[int, JsonObject]:
        """Send a message. Each call sends another one."""
        made = {"id": f"nt_{len(self.notifications) + 1}", **wanted.model_dump(), "key": caller.key}
        self.notifications.append(made)
        return 201, made

    def put_ticket(self, ticket: str, wanted: TicketRequest) -> tuple[int, JsonObject]:
        """Set a ticket's fields."""
        self.tickets[ticket] = {"id": ticket, **wanted.model_dump()}
        return 200, self.tickets[ticket]

    def delete_record(self, record: str) -> tuple[int, JsonObject]:
        """Delete a record. A second deletion is an effect too: what it meets might have been made anew meanwhile."""
        self.deleted[record] = self.deleted.get(record, 0) + 1
        return 200, {"id": record, "deletions": self.deleted[record]}


def _cut(request: Request) -> Response:
    """Cut the connection without an answer. Raises ConnectionResetError where there is none (a call in the process)."""
    transport: asyncio.Transport | None = request.scope.get("state", {}).get("transport")
    if transport is None:
        raise ConnectionResetError("told to drop the connection")
    transport.abort()
    return Response()


def make_app(provider: Provider) -> FastAPI:
    """Return the ASGI application of this provider."""
    app = FastAPI(title="Stepfence example provider", docs_url=None, redoc_url=None)
    _add_business_routes(app, provider)
    _add_probe_routes(app, provider)
    _add_control_routes(app, provider)

    @app.exception_handler(LogFullError)
    async def log_full(_request: Request, error: LogFullError) -> Response:
        return JSONResponse({"error": str(error)}, LOG_FULL)

    return app


def _add_business_routes(app: FastAPI, provider: Provider) -> None:
    @app.post("/refunds")
    async def refund(request: Request, wanted: RefundRequest) -> Response:
        return await provider.call(request, Route.CREATE_REFUND, lambda caller: provider.refund(caller, wanted), body=wanted.model_dump())

    @app.post("/notifications")
    async def notify(request: Request, wanted: NotificationRequest) -> Response:
        return await provider.call(
            request, Route.CREATE_NOTIFICATION, lambda caller: provider.notify(caller, wanted), body=wanted.model_dump()
        )

    @app.put("/tickets/{ticket}")
    async def put_ticket(request: Request, ticket: str, wanted: TicketRequest) -> Response:
        return await provider.call(
            request,
            Route.PUT_TICKET,
            lambda _caller: provider.put_ticket(ticket, wanted),
            target=ticket,
            body=wanted.model_dump(),
        )

    @app.delete("/records/{record}")
    async def delete_record(request: Request, record: str) -> Response:
        return await provider.call(request, Route.DELETE_RECORD, lambda _caller: provider.delete_record(record), target=record)


def _add_probe_routes(app: FastAPI, provider: Provider) -> None:
    @app.get("/orders/{order}")
    async def read_order(request: Request, order: str) -> Response:
        found = {"id": order, "status": "paid", "amount": 4200, "currency": "EUR", "customer": f"{order}@example.com"}
        return await provider.call(request, Route.READ_ORDER, lambda _caller: (200, found), target=order)

    @app.get("/tickets/{ticket}")
    async def read_ticket(request: Request, ticket: str) -> Response:
        def look(_caller: Caller) -> tuple[int, JsonObject]:
            found = provider.tickets.get(ticket)
            return (200, found) if found else (404, {"error": "no such ticket"})

        return await provider.call(request, Route.READ_TICKET, look, target=ticket)

    @app.get("/refunds")
    async def find_refunds(request: Request, key: str) -> Response:
        def look(_caller: Caller) -> tuple[int, JsonObject]:
            return 200, {"refunds": [made for made in provider.refunds if made["key"] == key]}

        return await provider.call(request, Route.FIND_REFUNDS, look, target=key)

    @app.get("/notifications")
    async def find_notifications(request: Request, key: str) -> Response:
        def look(_caller: Caller) -> tuple[int, JsonObject]:
            return 200, {"notifications": [made for made in provider.notifications if made["key"] == key]}

        return await provider.call(request, Route.FIND_NOTIFICATIONS, look, target=key)


def _add_control_routes(app: FastAPI, provider: Provider) -> None:
    @app.post("/_control", status_code=201)
    async def add_rule(rule: Rule) -> RuleState:
        return provider.rules.add(rule)

    @app.get("/_control")
    async def rules() -> list[RuleState]:
        return provider.rules.states()

    @app.delete("/_control", status_code=204)
    async def clear_rules() -> None:
        provider.rules.clear()

    @app.post("/_control/release")
    async def release(which: Annotated[Release, Body(default_factory=Release)]) -> dict[str, int]:
        return {"released": provider.rules.release(which.rule)}

    @app.get("/_log")
    async def log(
        after: Annotated[int, Query(ge=0)] = 0,
        wait_seconds: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
    ) -> LogPage:
        return await provider.journal.wait(after, wait_seconds) if wait_seconds else provider.journal.page(after)

    @app.delete("/_log", status_code=204)
    async def clear_log() -> None:
        provider.journal.clear()

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "ok"}
