"""What a worker imports. `stepfence` itself offers the same names."""

from stepfence.core.words import Action, Recovery
from stepfence.sdk.classify import (
    DEFAULT_CLASSIFIERS,
    Classifier,
    classify_httpx,
    classify_os,
    classify_requests,
    raise_for_status,
)
from stepfence.sdk.connection import Connection, connect, run
from stepfence.sdk.errors import (
    CallRefused,
    Cancelled,
    Draining,
    Fenced,
    Halted,
    NotApplied,
    NotFinished,
    NotInARun,
    PayloadChanged,
    ResultNotReadable,
    ResultNotStored,
    RunFailed,
    StepDenied,
    StepFailed,
    StepfenceError,
    Stop,
    Unreachable,
    Unsettled,
)
from stepfence.sdk.planning import PlanStep
from stepfence.sdk.probing import CannotTell, DidNotHappen, Happened
from stepfence.sdk.run import Run, StepOptions
from stepfence.sdk.settings import Options, Settings
from stepfence.sdk.step import Step
from stepfence.sdk.sync import SyncConnection, SyncRun, connect_sync

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
