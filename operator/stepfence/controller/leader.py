"""One replica leads, by a Lease. Compare-and-swap makes two leaders harmless; the Lease makes them rare.

The election itself is the official client's. What is ours: a lock with deadlines on every call, and a leader that stops believing in itself
by its own clock, however long a call hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.baselock import BaseLock

from stepfence.controller.settings import ControllerSettings
from stepfence.core.errors import Unknown
from stepfence.stores.kube_client import KubeClient, kube_path

__all__ = ["LEASE_NAME", "Leadership"]

LEASE_NAME = "stepfence-controller"
_LOG = structlog.get_logger(__name__)
_COORDINATION = "coordination.k8s.io/v1"
_LOCAL = "%Y-%m-%d %H:%M:%S.%f"


def _no_lease(status: int, reason: str) -> ApiException:
    """Return the error in the shape that the election reads: only a clean 404 lets it make the Lease."""
    error = ApiException(status=status, reason=reason)
    error.body = json.dumps({"code": status})
    return error


class LeaseLock(BaseLock):
    """The Lease under compare-and-swap. Every call answers within the client's deadline; none raises."""

    def __init__(self, client: KubeClient, name: str, namespace: str, identity: str, renewed: Callable[[float], None]) -> None:
        super().__init__(name, namespace, identity)
        self._client, self._renewed = client, renewed
        self._revision = ""
        self._transitions = 0
        self._last_holder = ""
        # When the election last came to something: another replica was seen to hold the Lease, or a write was answered.
        self.heard_at: float | None = None

    def hear(self) -> None:
        """Note that the election works."""
        self.heard_at = asyncio.get_running_loop().time()

    async def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        """Return the record, or the error as the election wants it."""
        try:
            reply = await self._client.get(kube_path(_COORDINATION, "leases", namespace, name))
        except Unknown as unknown:
            return False, _no_lease(503, str(unknown))
        if not reply.ok:
            return False, _no_lease(404 if reply.object_missing else reply.status or 500, reply.message)
        spec = reply.body.get("spec") or {}
        self._revision = reply.body["metadata"]["resourceVersion"]
        self._transitions = spec.get("leaseTransitions") or 0
        self._last_holder = spec.get("holderIdentity") or ""
        if self._last_holder not in ("", self.identity):
            self.hear()
        duration = spec.get("leaseDurationSeconds")
        return True, LeaderElectionRecord(
            self._last_holder or None, None if duration is None else str(duration), spec.get("acquireTime"), spec.get("renewTime")
        )

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        """Make the Lease; false when another replica was first."""
        document = self._document(name, namespace, election_record)
        return await self._write(lambda: self._client.post(kube_path(_COORDINATION, "leases", namespace), document))

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        """Take or renew the Lease as it was read; false when it moved."""
        document = self._document(name, namespace, updated_record)
        document["metadata"]["resourceVersion"] = self._revision
        return await self._write(lambda: self._client.put(kube_path(_COORDINATION, "leases", namespace, name), document))

    async def resign(self) -> None:
        """Let another replica take over at once."""
        found, record = await self.get(self.name, self.namespace)
        if found and record.holder_identity == self.identity:
            record.holder_identity, record.lease_duration = "", "1"
            await self.update(self.name, self.namespace, record)

    async def _write(self, call: Callable[[], Awaitable[Any]]) -> bool:
        asked = asyncio.get_running_loop().time()
        try:
            reply = await call()
        except Unknown:
            return False
        if reply.ok:
            self._renewed(asked)
        if reply.ok or reply.status == 409:
            self.hear()
        return bool(reply.ok)

    def _document(self, name: str, namespace: str, record: LeaderElectionRecord) -> dict[str, Any]:
        changed = record.holder_identity != self._last_holder
        spec: Mapping[str, Any] = {
            "holderIdentity": record.holder_identity,
            "leaseDurationSeconds": max(1, int(float(record.lease_duration or "1"))),
            "acquireTime": _micro_time(record.acquire_time),
            "renewTime": _micro_time(record.renew_time),
            "leaseTransitions": self._transitions + (1 if changed else 0),
        }
        metadata = {"name": name, "namespace": namespace}
        return {"apiVersion": _COORDINATION, "kind": "Lease", "metadata": metadata, "spec": spec}


def _micro_time(text: str | None) -> str:
    """The election writes local time without a zone; what came from the Lease stays as it is."""
    if text is not None and text.endswith("Z"):
        return text
    moment = datetime.now().astimezone() if text is None else datetime.strptime(text, _LOCAL).astimezone()
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Leadership:
    """Runs the election for ever. `leads` is true only while the last renewal is younger than the renew deadline."""

    def __init__(self, client: KubeClient, settings: ControllerSettings) -> None:
        self._settings = settings
        # Called when a term begins and when it ends.
        self.on_start: Callable[[], None] = _nothing
        self.on_stop: Callable[[], None] = _nothing
        self._lock = LeaseLock(client, LEASE_NAME, settings.pod_namespace, settings.pod_name, self._note)
        self._renewed_at = float("-inf")
        self._elected = False

    def _note(self, asked: float) -> None:
        self._renewed_at = asked

    def leads(self) -> bool:
        """Whether this replica may act. By its own clock, counted from before the renewal was asked for."""
        return self._elected and asyncio.get_running_loop().time() < self._renewed_at + self._settings.election_renew_seconds

    def problem(self) -> str | None:
        """Return why this replica can neither lead nor follow; None while it can."""
        heard = self._lock.heard_at
        limit = 2 * self._settings.election_lease_seconds
        if heard is None or asyncio.get_running_loop().time() - heard <= limit:
            return None
        return f"the election has come to nothing for more than {limit:g} s"

    async def run(self) -> None:
        """Campaign, lead, lose, campaign again. Ends only by cancellation, and then resigns."""
        self._lock.hear()
        try:
            while True:
                await self._term()
        finally:
            self._stopped()
            async with asyncio.timeout(self._settings.election_retry_seconds):
                await self._lock.resign()

    async def _term(self) -> None:
        term: asyncio.Task[None] | None = None

        async def lead() -> None:
            nonlocal term
            term = asyncio.current_task()
            self._elected = True
            _LOG.info("leading", identity=self._settings.pod_name)
            self.on_start()
            await asyncio.Event().wait()

        async def stop() -> None:
            self._stopped()

        config = Config(
            self._lock,
            self._settings.election_lease_seconds,
            self._settings.election_renew_seconds,
            self._settings.election_retry_seconds,
            lead,
            stop,
        )
        try:
            await LeaderElection(config).run()
        finally:
            if term is not None:
                term.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await term

    def _stopped(self) -> None:
        if self._elected:
            self._elected = False
            _LOG.warning("no longer leading", identity=self._settings.pod_name)
            self.on_stop()


def _nothing() -> None:
    return
