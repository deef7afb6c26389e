"""What people write of an AgentRun, checked as the CRD checks it; the error names the field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError
from pydantic.alias_generators import to_camel

from stepfence.core.errors import Code, Refused
from stepfence.core.plan import plan_problems
from stepfence.core.words import Action, Recovery, Settings, Verdict
from stepfence.schema import GROUP, VERSION, decode

__all__ = ["API_VERSION", "YEAR", "Document", "PodMetadata", "admit_new", "check_spec", "validate"]

Document = dict[str, Any]

API_VERSION = f"{GROUP}/{VERSION}"
YEAR = 31_536_000
_DAY = 86_400
_DEFAULTS = {"backoffLimit": 6, "workerHistoryLimit": 3}
_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class _Strict(BaseModel):
    """Fields by their names in JSON; one that is not known is refused, as kubectl does."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


Count = Annotated[StrictInt, Field(ge=1, le=100)]
Wait = Annotated[StrictInt, Field(ge=0, le=_DAY)]
RunID = Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]
Long = Annotated[StrictInt, Field(ge=1, le=YEAR)]


class _Approval(_Strict):
    expires_after_seconds: Long | None = None


class _Probe(_Strict):
    give_up_after_seconds: Long | None = None


class _Step(_Strict):
    id: Annotated[str, Field(pattern=_NAME, max_length=63)]
    action: Action = Action.CREATE
    recovery: Recovery | None = None
    timeout_seconds: Annotated[StrictInt, Field(ge=1, le=_DAY)] | None = None
    settle_seconds: Wait | None = None
    attempts: Count | None = None
    backoff_seconds: Wait | None = None
    idempotency_key_ttl_seconds: Long | None = Field(default=None, alias="idempotencyKeyTTLSeconds")
    approval: _Approval | None = None
    probe: _Probe | None = None


class _Plan(_Strict):
    steps: Annotated[list[_Step], Field(min_length=1, max_length=256)]


class _Decision(_Strict):
    verdict: Verdict
    result: dict[str, Any] | None = None
    reason: Annotated[str, Field(max_length=1024)] = ""
    force: StrictBool = False
    by: Annotated[str, Field(max_length=256)] = ""


class PodMetadata(BaseModel):
    """What is read of a template's metadata."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Template(BaseModel):
    metadata: PodMetadata = PodMetadata()


class _Spec(_Strict):
    run_id: RunID | None = Field(default=None, alias="runID")
    input: dict[str, Any] | None = None
    plan: _Plan | None = None
    template: _Template
    backoff_limit: Annotated[StrictInt, Field(ge=0, le=1000)] = 6
    active_deadline_seconds: Annotated[StrictInt, Field(ge=1, le=10 * YEAR)] | None = None
    worker_history_limit: Annotated[StrictInt, Field(ge=0, le=100)] = 3
    suspend: StrictBool = False
    cancel: StrictBool = False
    decisions: Annotated[dict[str, _Decision], Field(max_length=256)] = {}


class _Metadata(BaseModel):
    name: Annotated[str, Field(pattern=_NAME, max_length=63)]
    namespace: Annotated[str, Field(pattern=_NAME, max_length=63)]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Manifest(_Strict):
    api_version: str
    kind: str
    metadata: _Metadata
    spec: dict[str, Any]


def admit_new(manifest: Any, namespace: str) -> Document:
    """Return the object to create from a manifest as read from YAML, with defaults; `namespace`: where it goes unless it says so.

    Raises `Refused(BAD_REQUEST)` naming the field.
    """
    if not isinstance(manifest, dict):
        raise _wrong("", "a manifest is a mapping with apiVersion, kind, metadata and spec")
    if (manifest.get("apiVersion"), manifest.get("kind")) != (API_VERSION, "AgentRun"):
        said = (
            " ".join(str(manifest[name]) for name in ("apiVersion", "kind") if manifest.get(name))
            or "what names neither apiVersion nor kind"
        )
        raise _wrong("kind", f"only {API_VERSION} AgentRun can run here, not {said}")
    given = {name: value for name, value in manifest.items() if name != "status"}
    metadata = given.get("metadata")
    if isinstance(metadata, dict):
        given["metadata"] = {"namespace": namespace, **metadata}
    validate(_Manifest, given, "")
    kept = {name: value for name, value in given["metadata"].items() if name in ("name", "namespace", "labels", "annotations") and value}
    spec = {**_DEFAULTS, **{name: value for name, value in given["spec"].items() if value is not None}}
    document = {"apiVersion": API_VERSION, "kind": "AgentRun", "metadata": kept, "spec": spec}
    check_spec(document)
    if spec.get("decisions"):
        raise _wrong("spec.decisions", "a run cannot be created with decisions: nothing is open yet")
    return document


def check_spec(document: Document) -> None:
    """Check a whole `spec`. Raises `Refused(BAD_REQUEST)` naming the field."""
    validate(_Spec, document["spec"], "spec")
    settings = Settings()
    spec = decode({"metadata": document["metadata"], "spec": document["spec"]}, settings).spec
    problem = next(iter(spec.problems), None)
    if problem is None and spec.steps is not None:
        found = plan_problems(spec.steps, settings)
        problem = None if found is None else f"spec.{found}"
    if problem is not None:
        field, _, text = problem.partition(": ")
        raise _wrong(field, text)


# Where pydantic's own words would not do, or name classes of ours.
_TOLD = {"extra_forbidden": "unknown field", "model_type": "Input should be a valid dictionary"}


def validate(model: type[BaseModel], value: Any, where: str) -> None:
    """Check a value by a model. Raises `Refused(BAD_REQUEST)` naming the field; `where`: what stands before it."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = _TOLD.get(first["type"], first["msg"])
        raise _wrong(_path(where, first["loc"]), what) from error


def _path(where: str, parts: tuple[int | str, ...]) -> str:
    text = where
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _wrong(field: str, text: str) -> Refused:
    return Refused(Code.BAD_REQUEST, f"{field}: {text}" if field else text, field=field or None)
