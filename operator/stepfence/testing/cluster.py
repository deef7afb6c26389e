"""A whole Stepfence in one process, so that an agent can be tested with no cluster: same core, same gateway routes, same SDK."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from stepfence.app import Applier, Bodies, TokenProofs, WorkerCalls
from stepfence.app.proofs import KEY_BYTES
from stepfence.app.system import SystemClock, SystemIds
from stepfence.core.canonical import Json, parse
from stepfence.core.decide import Decided, decide
from stepfence.core.model import Body, Run
from stepfence.core.words import At, Settings
from stepfence.core.world import World
from stepfence.gateway.app import create_app
from stepfence.ports import Clock, Ids, RunKey
from stepfence.sdk import Connection, Options, SyncConnection, connect, connect_sync
from stepfence.sdk import Settings as WorkerSettings
from stepfence.sdk.planning import PlanStep
from stepfence.stores import MemoryRecordStore, MemoryRunStore
from stepfence.testing.plans import checked_plan
from stepfence.testing.pods import MemoryGate, Pod

__all__ = ["MemoryCluster", "MemoryRun", "MemoryWorker"]

_PASSES = 20


class MemoryCluster:
    """`async with MemoryCluster() as cluster:` holds runs, a gateway, and a controller that acts when it is asked to."""

    def __init__(self, *, settings: Settings | None = None, clock: Clock | None = None, ids: Ids | None = None) -> None:
        # Tests do not wait out the back-off between workers unless they ask for it.
        self.settings = settings or Settings(backoff_base=0)
        self.clock: Clock = clock or SystemClock()
        self.store, self.records = MemoryRunStore(self.settings), MemoryRecordStore(self.clock.now)
        self.gate = MemoryGate(self.clock)
        self.applier = Applier(self.store, self.clock, ids or SystemIds(), self.settings)
        # The same key in every test: what is proven here never leaves the process.
        self.proofs = TokenProofs((b"stepfence.testing".ljust(KEY_BYTES),))
        self.app = create_app(WorkerCalls(self.applier, self.records, self.gate, self.proofs), self.gate)
        self.jobs: dict[RunKey, list[str]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> Self:
        """Make a folder for what workers keep in files."""
        self._folder = tempfile.TemporaryDirectory(prefix="stepfence-")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove it."""
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """Where workers keep their files. Raises `RuntimeError` outside the block."""
        if self._folder is None:
            raise RuntimeError("use `async with MemoryCluster() as cluster`")
        return Path(self._folder.name)

    async def create(
        self, name: str = "run", *, plan: Sequence[PlanStep | Mapping[str, Any]] | None = None, namespace: str = "default", **spec: Any
    ) -> MemoryRun:
        """Apply an AgentRun: `plan` has steps as in `spec.plan.steps`, `spec` the other fields by their names in JSON.

        Raises `ValueError` naming what is wrong in the plan, `TypeError` when it is no list of steps.
        """
        body = {"template": {}, **spec, **({"plan": {"steps": checked_plan(plan)}} if plan is not None else {})}
        stored = self.store.create({"metadata": {"name": name, "namespace": namespace}, "spec": body})
        run = MemoryRun(self, stored.key)
        await run.reconcile()
        return run


class MemoryRun:
    """One AgentRun of a `MemoryCluster`."""

    def __init__(self, cluster: MemoryCluster, key: RunKey) -> None:
        self.cluster, self.key = cluster, key
        self._identity: str | None = None
        self._mark: str | None = None

    @property
    def status(self) -> dict[str, Any]:
        """The status as `kubectl get -o json` shows it."""
        status: dict[str, Any] = self.cluster.store.document(self.key)["status"]
        return status

    @property
    def phase(self) -> str:
        """The phase."""
        return str(self.status.get("phase", ""))

    @property
    def questions(self) -> dict[str, Any]:
        """The open questions by key."""
        return dict(self.status.get("questions", {}))

    @property
    def result(self) -> Json:
        """What `run.finish` said, None before."""
        text = self.status.get("result")
        return None if text is None else parse(text)

    async def worker(self) -> MemoryWorker:
        """Return the worker that the controller wants now, its pod started. Raises `AssertionError` when it wants none."""
        worker = await self.wanted_worker()
        if worker is None:
            run = (await self.cluster.store.load(self.key)).run
            raise AssertionError(f"no new worker is wanted: the run is {self.phase}, worker {run.worker}")
        return worker

    async def wanted_worker(self) -> MemoryWorker | None:
        """Return the worker that the controller wants now, its pod started; None when it wants none, or its pod is there already."""
        await self.reconcile()
        run = (await self.cluster.store.load(self.key)).run
        if run.worker is None or run.worker.ended_at is not None or run.terminal:
            return None
        pods = self.cluster.gate.pods
        if any(pod.job == run.worker.job for pod in pods.values() if pod.run_uid == run.uid and not (pod.terminated or pod.vanished)):
            return None
        pod = Pod(f"{run.worker.job}-pod", str(uuid.uuid4()), run.worker.job, self.key, run.uid, self.cluster.clock.now())
        pods[pod.uid] = pod
        return MemoryWorker(self, pod)

    async def answer(self, question: str, verdict: str, **more: Any) -> None:
        """Decide as a person does by `kubectl patch`: `result`, `reason`, `force`, `by` as in `spec.decisions`."""
        self.cluster.store.patch_spec(self.key, {"decisions": {question: {"verdict": verdict, **more}}})
        await self.reconcile()

    async def patch(self, **spec: Any) -> None:
        """Merge-patch the spec (`suspend`, `cancel`, …)."""
        self.cluster.store.patch_spec(self.key, spec)
        await self.reconcile()

    async def reconcile(self) -> None:
        """Let the controller act until nothing changes."""
        for _ in range(_PASSES):
            if not await self._pass():
                return
        raise AssertionError(f"{self.key} does not come to rest after {_PASSES} passes")

    async def _pass(self) -> bool:
        stored = await self.cluster.applier.read(self.key)
        answers = Bodies(self.cluster.records, self.cluster.settings).answers()
        jobs = self.cluster.jobs.setdefault(self.key, [])

        def edit(run: Run, at: At) -> tuple[Run, Decided]:
            decided = decide(run, self._world(run, tuple(jobs), answers.on(run)), at)
            return decided.run, decided

        applied = await self.cluster.applier.apply(self.key, edit, refresh=True, bodies=answers)
        decided = applied.answer
        if decided.spend:
            self._identity = await self.cluster.records.spend(stored.run)
        if decided.mark:
            self._mark = stored.run.uid
        created = decided.create is not None and decided.create.job not in jobs
        if decided.create is not None and created:
            jobs.append(decided.create.job)
        for delete in decided.delete_pods:
            self.cluster.gate.pods[delete.uid].deletion_at = self.cluster.clock.now()
        return applied.wrote or decided.spend or decided.mark or created or bool(decided.delete_pods)

    def _world(self, run: Run, jobs: tuple[str, ...], bodies: Mapping[str, Body]) -> World:
        return replace(self.cluster.gate.world(run, jobs), identity=self._identity, mark=self._mark, bodies=bodies)


class MemoryWorker:
    """One worker: a pod that lives, and the way in for the SDK."""

    def __init__(self, run: MemoryRun, pod: Pod) -> None:
        self.run, self.pod = run, pod
        folder = run.cluster.folder / pod.uid
        folder.mkdir()
        (folder / "token").write_text(pod.uid)
        self.settings = WorkerSettings(
            gateway="http://gateway",
            namespace=run.key.namespace,
            run=run.key.name,
            token_file=folder / "token",
            run_uid=pod.run_uid,
            worker=pod.job.rpartition("-")[2],
            state_dir=folder,
        )

    @property
    def transport(self) -> httpx.ASGITransport:
        """The gateway, in this process."""
        return httpx.ASGITransport(self.run.cluster.app)

    def connect(self, options: Options | None = None) -> Connection:
        """Return what `stepfence.connect()` returns in a pod. Stops are raised, they do not end the process."""
        return connect(settings=self.settings, options=options or _QUIET, transport=self.transport)

    def connect_sync(self, options: Options | None = None) -> SyncConnection:
        """Return what `stepfence.connect_sync()` returns in a pod."""
        return connect_sync(settings=self.settings, options=options or _QUIET, transport=self.transport)

    async def kill(self, exit_code: int = 137) -> None:
        """End the pod as SIGKILL does, its end seen by the kubelet, and let the controller act."""
        self.pod.terminated, self.pod.exit_code = True, exit_code
        await self.run.reconcile()

    async def vanish(self) -> None:
        """Remove the pod's object without its end being seen (a lost node), and let the controller act."""
        self.pod.vanished = True
        await self.run.reconcile()

    async def ended(self, exit_code: int = 0) -> None:
        """Say that the process ended by itself, and let the controller act."""
        await self.kill(exit_code)


_QUIET = Options(exit_on_stop=False, handle_sigterm=False)
