"""What a person may change, by the rules that the CRD keeps on a cluster: the same patch is taken or refused here and there."""

from __future__ import annotations

import copy
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch

from stepfence.core.canonical import canonical
from stepfence.core.errors import Code, Refused
from stepfence.local.manifest import Document, check_spec
from stepfence.local.reading import require_json
from stepfence.stores.merge import merge

__all__ = ["IMMUTABLE", "admit_json_patch", "admit_patch"]

IMMUTABLE = ("runID", "input", "plan", "backoffLimit", "activeDeadlineSeconds", "workerHistoryLimit")
_PEOPLES, _ONLY_THEIRS = ("spec", "metadata"), "only spec, labels and annotations can be patched"
_PEOPLES_METADATA, _ONLY_LABELS = ("labels", "annotations"), "only labels and annotations can be patched"
# As an API server takes.
_MOST_OPERATIONS = 10_000
_LONGEST_ERROR = 160
_FITS = {"Approve": ("Approve", "Deny"), "Hold": ("Resume", "Abandon"), "Reconcile": ("Happened", "DidNotHappen", "Abandon")}


def admit_patch(before: Document, patch: Any) -> Document:
    """Return the object after a merge patch (RFC 7396); `before` with its status. Raises `Refused(BAD_REQUEST)` naming the field."""
    if not isinstance(patch, Mapping):
        raise _no("", "a merge patch is a JSON object")
    for name in patch:
        if name not in _PEOPLES:
            raise _no(name, _ONLY_THEIRS)
    metadata = patch.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise _no("metadata", "must be an object")
    for name in metadata:
        if name not in _PEOPLES_METADATA:
            raise _no(f"metadata.{name}", _ONLY_LABELS)
    return _admit(before, merge(before, patch))


def admit_json_patch(before: Document, patch: Any) -> Document:
    """Return the object after a JSON patch (RFC 6902), as `admit_patch` does."""
    after = _patched(before, patch)
    if not isinstance(after, dict) or not isinstance(after.get("metadata"), dict):
        raise _no("metadata", "cannot be removed")
    _require_same(before, after, _PEOPLES, "", _ONLY_THEIRS)
    _require_same(before["metadata"], after["metadata"], _PEOPLES_METADATA, "metadata.", _ONLY_LABELS)
    return _admit(before, after)


def _patched(before: Document, patch: Any) -> Any:
    if not isinstance(patch, list) or not all(isinstance(operation, Mapping) for operation in patch):
        raise _no("", "a JSON patch is a list of operations, each an object")
    if len(patch) > _MOST_OPERATIONS:
        raise _no("", f"{len(patch)} operations, at most {_MOST_OPERATIONS}")
    after: Any = copy.deepcopy(before)
    for index, operation in enumerate(patch):
        try:
            after = jsonpatch.JsonPatch([dict(operation)]).apply(after)
            if operation.get("op") == "copy":  # many of them make much of a few bytes: noticed before there is no memory left
                require_json(after)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, ValueError, TypeError, RecursionError) as error:
            where = operation.get("path")
            told = textwrap.shorten(str(error), _LONGEST_ERROR, placeholder=" …")  # some show the whole object
            raise _no(where if isinstance(where, str) else "", f"operation {index} cannot be applied: {told}") from error
    return after


def _require_same(before: Mapping[str, Any], after: Mapping[str, Any], but_for: Sequence[str], where: str, otherwise: str) -> None:
    for name in sorted(before.keys() | after.keys()):
        # As JSON, in which 1 is not true.
        if name not in but_for and json.dumps(before.get(name), sort_keys=True) != json.dumps(after.get(name), sort_keys=True):
            raise _no(f"{where}{name}", otherwise)


def _admit(before: Document, after: Document) -> Document:
    if not isinstance(after.get("spec"), dict):
        raise _no("spec", "cannot be removed")
    for name in _PEOPLES_METADATA:
        value = after["metadata"].get(name)
        if value is not None and not (isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())):
            raise _no(f"metadata.{name}", "values are strings")
    check_spec(after)
    old, new = before["spec"], after["spec"]
    for field in IMMUTABLE:
        if old.get(field) != new.get(field) or (field in old) != (field in new):
            raise _no(f"spec.{field}", f"{field} is immutable")
    _check_decisions(old.get("decisions") or {}, new.get("decisions") or {}, before.get("status") or {})
    return after


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
        # It would be recorded as refused, and the question asked anew: here it can be said before.
        canonical(decision.get("result"), field=f"{where}.result")


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
