"""What the watches told: small facts of runs, Jobs and pods. Whole objects are not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from stepfence.controller.facts import controller_of, job_fact, pod_fact
from stepfence.core.world import JobFact, PodFact
from stepfence.ports import RunKey
from stepfence.schema import RUN_LABEL, RUN_UID_LABEL
from stepfence.schema.times import parse_time

__all__ = ["Cache", "RunSeen"]

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunSeen:
    """What metrics and the watch's own check need of a run."""

    uid: str
    revision: str
    phase: str
    asked: tuple[datetime, ...] = ()


class Cache:
    """Fed by watch events; each one that matters calls `wake` with the run's key.

    A Job or pod that was deleted is kept, marked as gone, until a pass over its run has taken notice: the last state of a pod may be the
    only word of its end that the kubelet ever gave.
    """

    def __init__(self, wake: Callable[[RunKey], None]) -> None:
        self._wake = wake
        self.runs: dict[RunKey, RunSeen] = {}
        self._jobs: dict[str, dict[str, JobFact]] = {}
        self._pods: dict[str, dict[str, PodFact]] = {}
        self._keys: dict[str, RunKey] = {}

    def see_run(self, document: Object, *, deleted: bool = False) -> None:
        """Take in an event of an AgentRun."""
        metadata, status = document["metadata"], document.get("status") or {}
        key = RunKey(metadata["namespace"], metadata["name"])
        if deleted:
            known = self.runs.get(key)
            if known is not None and known.uid == metadata["uid"]:
                del self.runs[key]
        else:
            self.runs[key] = RunSeen(metadata["uid"], metadata["resourceVersion"], str(status.get("phase") or "Pending"), _asked(status))
        self._wake(key)

    def see_job(self, document: Object, *, deleted: bool = False) -> None:
        """Take in an event of a Job that carries our labels."""
        uid, key = _run_of(document)
        if uid is None or key is None:
            return
        fact = job_fact(document, uid)
        if fact.foreign:
            return
        self._put(self._jobs, uid, key, fact.name, replace(fact, gone=deleted))

    def see_pod(self, document: Object, *, deleted: bool = False) -> None:
        """Take in an event of a pod that carries our labels."""
        uid, key = _run_of(document)
        if uid is None or key is None or controller_of(document["metadata"]) is None:
            return
        self._put(self._pods, uid, key, document["metadata"]["uid"], pod_fact(document, gone=deleted))

    def _put(self, where: dict[str, dict[str, Any]], uid: str, key: RunKey, name: str, fact: JobFact | PodFact) -> None:
        facts = where.setdefault(uid, {})
        if facts.get(name) == fact:
            return
        facts[name] = fact
        self._keys[uid] = key
        self._wake(key)

    def jobs(self, run_uid: str) -> tuple[JobFact, ...]:
        """Return the known Jobs of a run."""
        return tuple(self._jobs.get(run_uid, {}).values())

    def pods(self, run_uid: str) -> tuple[PodFact, ...]:
        """Return the known pods of a run."""
        return tuple(self._pods.get(run_uid, {}).values())

    def sweep(self, run_uid: str, noticed: frozenset[JobFact | PodFact]) -> None:
        """Forget what is gone and was noticed by a pass that succeeded."""
        for where in (self._jobs, self._pods):
            facts: dict[str, Any] = where.get(run_uid, {})
            for name in [name for name, fact in facts.items() if fact.gone and fact in noticed]:
                del facts[name]
            if not facts:
                where.pop(run_uid, None)
        if run_uid not in self._jobs and run_uid not in self._pods:
            self._keys.pop(run_uid, None)

    def absent(self, kind: str, present: frozenset[str], before: frozenset[str]) -> None:
        """Mark as gone what a list of everything does not show though it was known `before` the list was asked for."""
        where: dict[str, dict[str, Any]] = self._jobs if kind == "jobs" else self._pods
        for uid, facts in list(where.items()):
            for name, fact in list(facts.items()):
                if fact.uid in before and fact.uid not in present and not fact.gone:
                    self._put(where, uid, self._keys[uid], name, replace(fact, gone=True))

    def uids(self, kind: str) -> frozenset[str]:
        """Return the uids of all known Jobs or pods that are not gone."""
        where: dict[str, dict[str, Any]] = self._jobs if kind == "jobs" else self._pods
        return frozenset(fact.uid for facts in where.values() for fact in facts.values() if not fact.gone)

    def mark_gone(self, run_uid: str, pod_uid: str) -> None:
        """Take in that the API server answered "not there" for a pod that a watch still shows."""
        fact = self._pods.get(run_uid, {}).get(pod_uid)
        if fact is not None and not fact.gone:
            self._put(self._pods, run_uid, self._keys[run_uid], pod_uid, replace(fact, gone=True))

    def revision_of(self, key: RunKey, uid: str) -> str | None:
        """Return the newest revision of a run that a watch told of; None for a run that is not known."""
        seen = self.runs.get(key)
        return seen.revision if seen is not None and seen.uid == uid else None

    def known(self) -> Iterator[RunKey]:
        """Yield the key of every known run."""
        yield from list(self.runs)


def _asked(status: Object) -> tuple[datetime, ...]:
    try:
        return tuple(parse_time(item["since"]) for item in (status.get("questions") or {}).values() if "since" in item)
    except (ValueError, TypeError, AttributeError):
        return ()  # of another version, or written by hand: the pass over the run says what is wrong with it


def _run_of(document: Object) -> tuple[str | None, RunKey | None]:
    metadata = document["metadata"]
    labels = metadata.get("labels") or {}
    uid, name = labels.get(RUN_UID_LABEL), labels.get(RUN_LABEL)
    return (uid, RunKey(metadata["namespace"], name)) if uid and name else (None, None)
