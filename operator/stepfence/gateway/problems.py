"""Errors as RFC 9457 problems. Every answer that is no success is one, whoever made it: rule, validation, route, server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException

from stepfence.app.views import Standing
from stepfence.core.errors import Code, Conflict, Refused, StepfenceError, Unknown

__all__ = ["INTERNAL", "MEDIA_TYPE", "Problem", "field_of", "install", "plain", "problem", "response", "status_of"]

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
_TYPES = "https://stepfence.dev/problems/"
_STATUS = {
    Code.BAD_REQUEST: 400,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.TOO_LARGE: 413,
    Code.OVER_BUDGET: 429,
    Code.STORE_UNAVAILABLE: 503,
}
# Of the HTTP layer alone, so they are no words of the core.
METHOD_NOT_ALLOWED, UNSUPPORTED_MEDIA_TYPE, INTERNAL = "method-not-allowed", "unsupported-media-type", "internal"
_HTTP_CODES = {404: Code.NOT_FOUND.value, 405: METHOD_NOT_ALLOWED, 413: Code.TOO_LARGE.value, 415: UNSUPPORTED_MEDIA_TYPE}
_STORE_RETRY_SECONDS = 1.0


class Problem(BaseModel):
    """RFC 9457, with what a worker needs to know. The last part of `type` is stable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

    type: str
    title: str
    status: int
    detail: str
    instance: str = Field(description="The path that was called.")
    token: int | None = Field(default=None, description="The current fencing token.")
    phase: str | None = Field(default=None, description="The run's phase.")
    field: str | None = Field(default=None, description="The input that is wrong.")
    retry_after_seconds: float | None = None
    attempt: int | None = Field(default=None, description="The recorded attempt whose time is over.")
    question: str | None = Field(default=None, description="What a person is asked.")
    patch: str | None = Field(default=None, description="The command that answers the question.")


def status_of(code: Code) -> int:
    """Return the HTTP status of a refusal: 409 unless it is about the call itself or the store."""
    return _STATUS.get(code, 409)


def problem(error: StepfenceError, instance: str, standing: Standing | None = None) -> Problem:
    """Return an error of ours as a problem; `standing` is where the run stands, for callers that may know."""
    refused = _as_refusal(error)
    question = refused.question
    return Problem(
        type=_TYPES + refused.code,
        title=_title(refused.code),
        status=status_of(refused.code),
        detail=refused.detail,
        instance=instance,
        token=standing.token if standing else None,
        phase=standing.phase if standing else None,
        field=refused.field,
        retry_after_seconds=refused.retry_after,
        attempt=refused.attempt,
        question=question,
        patch=standing.patches.get(question) if standing and question else None,
    )


def _as_refusal(error: StepfenceError) -> Refused:
    match error:
        case Refused():
            return error
        case Conflict():
            return Refused(Code.STORE_CONFLICT, "others wrote this run at the same time", retry_after=_STORE_RETRY_SECONDS)
        case Unknown():
            # What went wrong with the store is for the log; the caller repeats the call and learns what was recorded.
            return Refused(Code.STORE_UNAVAILABLE, "the store did not answer: repeat this call", retry_after=_STORE_RETRY_SECONDS)
        case _:
            raise error


def _title(code: str) -> str:
    return code.replace("-", " ").capitalize()


def response(body: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Return a problem as an HTTP response; what is not known is left out."""
    extra = dict(headers or {})
    if body.retry_after_seconds is not None and body.status in (429, 503):
        extra["Retry-After"] = str(math.ceil(body.retry_after_seconds))
    if body.status == 401:
        extra["WWW-Authenticate"] = 'Bearer realm="stepfence"'
    text = body.model_dump_json(by_alias=True, exclude_none=True)
    return Response(text, status_code=body.status, headers=extra, media_type=MEDIA_TYPE)


def plain(code: str, status: int, detail: str, instance: str, field: str | None = None) -> Problem:
    """Return a problem of the HTTP layer."""
    return Problem(type=_TYPES + code, title=_title(code), status=status, detail=detail, instance=instance, field=field)


def field_of(location: tuple[int | str, ...]) -> str:
    """Return where an input is wrong, without the part of the request: `steps[0].action`."""
    text = ""
    for part in location[1:]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or str(location[0])


def install(app: FastAPI) -> None:
    """Make every error of an application a problem."""

    async def ours(request: Request, error: Exception) -> Response:
        if not isinstance(error, StepfenceError):
            raise error
        if isinstance(error, Unknown):
            log.warning("gateway.store.unknown", error=str(error))
        elif isinstance(error, Refused) and error.code is Code.STORE_UNAVAILABLE:
            log.warning("gateway.store.refused", run=request.url.path, error=error.detail)
        return response(problem(error, request.url.path, getattr(request.state, "standing", _nothing)()))

    async def invalid(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        # Never the input itself: it may hold what the agent must keep to itself.
        first = error.errors()[0]
        field = "body" if first["type"] == "json_invalid" else field_of(first["loc"])
        return response(plain(Code.BAD_REQUEST, 400, f"{field}: {first['msg']}", request.url.path, field))

    async def http(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        status = error.status_code
        code = _HTTP_CODES.get(status, Code.BAD_REQUEST.value)
        return response(plain(code, status, HTTPStatus(status).phrase, request.url.path), error.headers)

    async def internal(request: Request, _: Exception) -> Response:
        return response(plain(INTERNAL, 500, "an error of the gateway: it is in its log", request.url.path))

    app.add_exception_handler(StepfenceError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, internal)


def _nothing() -> None:
    return None
