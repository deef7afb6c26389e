"""A pod template as one process of this machine: what can be, is; what cannot, is refused by name rather than left out in silence."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from pydantic.alias_generators import to_camel

from stepfence.controller.jobs import Injection, build_job
from stepfence.core.decide import WorkerPlan
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.core.words import Settings
from stepfence.local.manifest import YEAR, PodMetadata, validate

__all__ = ["DIRECTORY_ANNOTATION", "WorkerCommand", "check_template", "worker_command"]

DIRECTORY_ANNOTATION = "stepfence.dev/local-directory"
_OURS = "STEPFENCE_"
_VARIABLE = re.compile(r"[^=\x00]+")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class _Part(BaseModel):
    """What is read of a pod template; the rest is left as it is."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


# What the kernel can take.
Text = Annotated[StrictStr, Field(pattern=r"^[^\x00]*$")]
Words = list[Text]


class _Exec(_Part):
    command: Words | None = None


class _Hook(_Part):
    exec: _Exec | None = None


class _Lifecycle(_Part):
    pre_stop: _Hook | None = None


class _Capabilities(_Part):
    add: list[StrictStr] | None = None


class _ContainerSecurity(_Part):
    capabilities: _Capabilities | None = None


class _Container(_Part):
    name: StrictStr = ""
    command: Words = []
    args: Words = []
    env: list[dict[str, Any]] | None = None
    working_dir: Text | None = None
    lifecycle: _Lifecycle | None = None
    volume_mounts: list[Any] | None = None
    security_context: _ContainerSecurity | None = None


class _PodSpec(_Part):
    containers: list[_Container]
    termination_grace_period_seconds: Annotated[StrictInt, Field(ge=0, le=YEAR)] = 0
    volumes: list[Any] | None = None
    security_context: dict[str, Any] | None = None


class _Template(_Part):
    metadata: PodMetadata = PodMetadata()
    spec: _PodSpec


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """What to run. `prestop`: the command before SIGTERM, empty for none; `grace`: seconds from then to SIGKILL."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    folder: str
    prestop: tuple[str, ...]
    grace: int


def check_template(template: Any) -> None:
    """Raise `Refused(BAD_REQUEST)`, naming the field, for a template that cannot run as one process here."""
    where = "spec.template.spec"
    spec = template.get("spec") if isinstance(template, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(spec.get("containers"), list) or len(spec["containers"]) != 1:
        raise _no(f"{where}.containers", "without a cluster a worker is one container")
    if spec.get("initContainers"):
        raise _no(f"{where}.initContainers", "without a cluster there are none")
    validate(_Template, template, "spec.template")
    container, where = spec["containers"][0], f"{where}.containers[0]"
    if not container.get("command"):
        raise _no(f"{where}.command", "is needed: without a cluster no image says what to run")
    if container.get("envFrom"):
        raise _no(f"{where}.envFrom", "needs a cluster: write env, or set the variables for `stepfence local` itself")
    _check_environ(container.get("env") or [], f"{where}.env")
    hook = (container.get("lifecycle") or {}).get("preStop")
    if hook is not None and not (hook.get("exec") or {}).get("command"):
        raise _no(f"{where}.lifecycle.preStop", "without a cluster only exec is run")


def _check_environ(items: list[Mapping[str, Any]], where: str) -> None:
    for index, item in enumerate(items):
        if not isinstance(item.get("name"), str) or not _VARIABLE.fullmatch(item["name"]):
            raise _no(f"{where}[{index}].name", "must be a string, without =")
        if "valueFrom" in item:
            raise _no(f"{where}[{index}].valueFrom", "needs a cluster: give a value, or set the variable for `stepfence local` itself")
        if not isinstance(item.get("value", ""), str) or "\0" in item.get("value", ""):
            raise _no(f"{where}[{index}].value", "must be a string")


def worker_command(
    run: Run, document: Mapping[str, Any], plan: WorkerPlan, ours: Mapping[str, str], environ: Mapping[str, str], settings: Settings
) -> WorkerCommand:
    """Return the command of a worker, made from the very Job that a cluster would get.

    `ours`: what a worker is told, in place of paths inside a container; `environ`: what this process was given, which an image would bring.
    Raises `Refused(BAD_REQUEST)`.
    """
    template = document["spec"]["template"]
    check_template(template)
    spec = build_job(run, template, plan, Injection("", "", settings.margin))["spec"]["template"]["spec"]
    container = spec["containers"][0]
    values = {name: value for name, value in environ.items() if not name.startswith(_OURS)}
    # First of all the Python that Stepfence is installed in: `python` and `stepfence` in a template are these.
    values["PATH"] = f"{Path(sys.executable).parent}:{values.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    told = {"STEPFENCE_NAMESPACE": run.namespace, "STEPFENCE_RUN": run.name, "STEPFENCE_RUN_UID": run.uid}
    known = {**told, "STEPFENCE_WORKER": str(plan.number), **ours}
    for item in container["env"]:
        if not item["name"].startswith(_OURS):
            known[item["name"]] = _expanded(item.get("value", ""), known)
    hook = ((container.get("lifecycle") or {}).get("preStop") or {}).get("exec") or {}
    directory = (document["metadata"].get("annotations") or {}).get(DIRECTORY_ANNOTATION, ".")
    return WorkerCommand(
        argv=tuple(_expanded(part, known) for part in [*container["command"], *container.get("args", [])]),
        environ={**values, **known},
        folder=str(Path(directory, container.get("workingDir") or ".")),
        prestop=tuple(hook.get("command") or ()),
        grace=spec["terminationGracePeriodSeconds"],
    )


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` as in a container's command: a name that is not known stays as it is, `$$` is a dollar sign."""
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]), text)


def _no(field: str, text: str) -> Refused:
    return Refused(Code.BAD_REQUEST, f"{field}: {text}", field=field)
