"""Logs as one JSON object a line, ours and the libraries' alike."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict, WrappedLogger

__all__ = ["configure"]


def configure(level: str) -> None:
    """Send every log line of this process to standard error as JSON."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _drop_nothing,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    renderers: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=renderers, foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], level=max(number, logging.INFO), force=True)
    # It tells each start and stop twice, and each aborted connection.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _drop_nothing(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:  # noqa: ARG001  (structlog's shape)
    return {name: value for name, value in event.items() if value is not None}
