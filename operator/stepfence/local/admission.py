"""What a person may change, by the rules that the CRD keeps on a cluster: the same patch is taken or refused here and there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepfence.core.errors import Code, Refused
from stepfence.local.manifest import Document, check_spec
from stepfence.stores.merge import merge

__all__ = ["IMMUTABLE", "admit_patch"]

IMMUTABLE = ("runID", "input", "plan", "backoffLimit", "activeDeadlineSeconds", "workerHistoryLimit")
_FITS = {"Approve": ("Approve", "Deny"), "Hold": ("Resume", "Abandon"), "Reconcile": ("Happened", "DidNotHappen", "Abandon")}


def admit_patch(before: Document, patch: Any) -> Document:
    """Return the object as it is after a merge patch; `before` with its status. Raises `Refused(BAD_REQUEST)` naming the field."""
    if not isinstance(patch, Mapping):
        raise _no("", "a merge patch is a JSON object")
    _require_peoples_fields(patch)
    after: Document = merge(before, patch)
    if not isinstance(after.get("spec"), dict):
        raise _no("spec", "cannot be removed")
    check_spec(after)
    old, new = before["spec"], after["spec"]
    for field in IMMUTABLE:
        if old.get(field) != new.get(field) or (field in old) != (field in new):
            raise _no(f"spec.{field}", f"{field} is immutable")
    _check_decisions(old.get("decisions") or {}, new.get("decisions") or {}, before.get("status") or {})
    return after


def _require_peoples_fields(patch: Mapping[str, Any]) -> None:
    for name in patch:
        if name not in ("spec", "metadata"):
            raise _no(name, "only spec, labels and annotations can be patched")
    metadata = patch.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise _no("metadata", "must be an object")
    for name, value in metadata.items():
        if name not in ("labels", "annotations"):
            raise _no(f"metadata.{name}", "only labels and annotations can be patched")
        if value is not None and not (isinstance(value, Mapping) and all(text is None or isinstance(text, str) for text in value.values())):
            raise _no(f"metadata.{name}", "values are strings")


def _check_decisions(old: Mapping[str, Any], new: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    questions = status.get("questions") or {}
    for key, decision in new.items():
        where = f"spec.decisions[{key}]"
        if decision.get("result") is not None and decision["verdict"] != "Happened":
            raise _no(where, "result goes with the verdict Happened alone")
        if decision.get("force") and decision["verdict"] != "DidNotHappen":
            raise _no(where, "force goes with the verdict DidNotHappen alone")
        if key in old:
            if decision != old[key]:
                raise _no("spec.decisions", f"a decision is written once: answer the open question under its own key ({key})")
            continue
        _check_new(key, decision, questions)


def _check_new(key: str, decision: Mapping[str, Any], questions: Mapping[str, Any]) -> None:
    question = questions.get(key)
    if question is None:
        told = f"{key} is none; open: {', '.join(questions) or 'none'}"
        raise _no("spec.decisions", f"a new decision must answer an open question, under its exact key: {told}")
    fitting = _FITS[question["kind"]]
    if decision["verdict"] not in fitting:
        raise _no("spec.decisions", f"the verdict does not fit the question {key}: {', '.join(fitting)} for kind {question['kind']}")
    early = decision["verdict"] == "DidNotHappen" and not decision.get("force") and not question.get("acceptsDidNotHappen")
    if early:
        raise _no(
            "spec.decisions",
            "DidNotHappen does not count yet: a request of an old attempt may still arrive. Answer it again when the question says "
            "acceptsDidNotHappen, or add force: true",
        )


def _no(field: str, text: str) -> Refused:
    return Refused(Code.BAD_REQUEST, f"{field}: {text}" if field else text, field=field or None)
