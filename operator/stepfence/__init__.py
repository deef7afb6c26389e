"""Stepfence: restart-safe AI-agent runs on Kubernetes.

The names of the SDK are loaded when first used, so that the servers do not carry it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepfence.sdk import (
        DEFAULT_CLASSIFIERS,
        Action,
        CallRefused,
        Cancelled,
        CannotTell,
        Classifier,
        Connection,
        DidNotHappen,
        Draining,
        Fenced,
        Halted,
        Happened,
        NotApplied,
        NotFinished,
        NotInARun,
        Options,
        PayloadChanged,
        PlanStep,
        Recovery,
        ResultNotReadable,
        ResultNotStored,
        Run,
        RunFailed,
        Settings,
        Step,
        StepDenied,
        StepFailed,
        StepfenceError,
        StepOptions,
        Stop,
        SyncConnection,
        SyncRun,
        Unreachable,
        Unsettled,
        classify_httpx,
        classify_os,
        classify_requests,
        connect,
        connect_sync,
        raise_for_status,
        run,
    )

__all__ = [
    "DEFAULT_CLASSIFIERS",
    "Action",
    "CallRefused",
    "Cancelled",
    "CannotTell",
    "Classifier",
    "Connection",
    "DidNotHappen",
    "Draining",
    "Fenced",
    "Halted",
    "Happened",
    "NotApplied",
    "NotFinished",
    "NotInARun",
    "Options",
    "PayloadChanged",
    "PlanStep",
    "Recovery",
    "ResultNotReadable",
    "ResultNotStored",
    "Run",
    "RunFailed",
    "Settings",
    "Step",
    "StepDenied",
    "StepFailed",
    "StepOptions",
    "StepfenceError",
    "Stop",
    "SyncConnection",
    "SyncRun",
    "Unreachable",
    "Unsettled",
    "classify_httpx",
    "classify_os",
    "classify_requests",
    "connect",
    "connect_sync",
    "raise_for_status",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from stepfence import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
