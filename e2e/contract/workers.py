"""Workers without nodes: Jobs and pods as objects, tokens that the API server binds to those pods, and calls over HTTPS."""

from __future__ import annotations

import base64
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from e2e.contract.kube import GROUP_VERSION, Objects, good
from stepfence.app import Applier
from stepfence.app.system import SystemClock, SystemIds
from stepfence.core import lifecycle
from stepfence.core.model import Run, Worker
from stepfence.core.words import At, Settings
from stepfence.ports import RunKey
from stepfence.schema import TOKEN_AUDIENCE, job_name
from stepfence.stores.kube import KubeRunStore
from stepfence.stores.kube_client import kube_path

ACCOUNT = "worker"
PLAN = [{"id": "lookup", "action": "Read"}, {"id": "refund", "action": "Payment"}]
_NAMES = itertools.count(1)


class Workers(Objects):
    """What the controller, the Job controller and kubelets do for workers, by hand."""

    async def prepare(self) -> None:
        """Make the namespace and the account of workers."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
        for path, manifest in [("namespaces", namespace), (f"namespaces/{self.namespace}/serviceaccounts", account)]:
            reply = await self.client.post(f"/api/v1/{path}", manifest)
            assert reply.ok or reply.status == 409, reply.message

    async def new_run(self, **spec: Any) -> RunKey:
        """An accepted run with its first worker's Job."""
        key = await self.create_run(f"run-{next(_NAMES)}", **{"plan": {"steps": PLAN}, **spec})
        await self.next_worker(key)
        return key

    async def next_worker(self, key: RunKey) -> str:
        """Write the next worker's number, then make its Job; return the Job's name."""

        def edit(run: Run, at: At) -> tuple[Run, str]:
            run = lifecycle.accept(run, at)
            number = run.worker.number + 1 if run.worker else 1
            job = job_name(run.name, run.uid, number)
            return replace(run, worker=Worker(number, job, "", at.now)), job

        applied = await Applier(KubeRunStore(self.client), SystemClock(), SystemIds(), Settings()).apply(key, edit)
        run = applied.stored.run
        owner = {"apiVersion": GROUP_VERSION, "kind": "AgentRun", "name": run.name, "uid": run.uid, "controller": True}
        pod = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [{"name": "agent", "image": "agent"}]}}
        manifest = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": applied.answer, "ownerReferences": [owner]},
            "spec": {"backoffLimit": 0, "template": pod},
        }
        good(await self.client.post(kube_path("batch/v1", "jobs", self.namespace), manifest))
        return applied.answer

    async def pod(self, job: str | None, name: str, **metadata: Any) -> dict[str, Any]:
        """A pod that runs on a node that nobody hears of: of a Job, or of nobody."""
        owners = []
        if job is not None:
            owner = await self.get("batch/v1", "jobs", job)
            owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": owner["metadata"]["uid"], "controller": True}]
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "ownerReferences": owners, **metadata},
            "spec": {
                "serviceAccountName": ACCOUNT,
                "restartPolicy": "Never",
                "nodeName": "nowhere",
                "containers": [{"name": "agent", "image": "agent"}],
            },
        }
        pod = good(await self.client.post(kube_path("v1", "pods", self.namespace), manifest))
        await self.container(name, {"running": {"startedAt": "2026-01-02T03:04:05Z"}}, "Running")
        return pod

    async def container(self, pod: str, state: dict[str, Any] | None, phase: str) -> None:
        """Report as a kubelet does; without a state, as pod garbage collection does."""
        status: dict[str, Any] = {"phase": phase}
        if state is not None:
            container = {"name": "agent", "image": "agent", "imageID": "", "ready": False, "restartCount": 0, "state": state}
            status["containerStatuses"] = [container]
        await self.merge(kube_path("v1", "pods", self.namespace, pod, "status"), {"status": status})

    async def terminated(self, pod: str) -> None:
        await self.container(pod, {"terminated": {"exitCode": 137, "finishedAt": "2026-01-02T03:05:05Z"}}, "Failed")

    async def token(self, pod: dict[str, Any] | None, *, audience: str = TOKEN_AUDIENCE) -> str:
        """A token of the workers' account, bound to a pod as a projected one is."""
        spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 600}
        if pod is not None:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        path = kube_path("v1", "serviceaccounts", self.namespace, ACCOUNT, "token")
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(good(await self.client.post(path, request))["status"]["token"])

    async def worker(self, key: RunKey, job: str, name: str, https: httpx.AsyncClient) -> WorkerPod:
        """A running pod of a Job with its token, that calls one gateway."""
        pod = await self.pod(job, name)
        return WorkerPod(key, pod, await self.token(pod), https)


class WorkerPod:
    """One worker pod as gateways meet it."""

    def __init__(self, key: RunKey, pod: dict[str, Any], bearer: str, https: httpx.AsyncClient) -> None:
        self.key, self.manifest, self.bearer, self.https = key, pod, bearer, https
        self.name = str(pod["metadata"]["name"])
        self.token = 0
        self._ids = itertools.count(1)

    def through(self, https: httpx.AsyncClient) -> WorkerPod:
        """The same pod by way of another gateway."""
        other = WorkerPod(self.key, self.manifest, self.bearer, https)
        other.token, other._ids = self.token, self._ids
        return other

    async def post(self, path: str, *, run: str | None = None, bearer: str | None = None, **body: Any) -> httpx.Response:
        whole = {"requestID": f"{self.name}-{next(self._ids)}", "token": self.token, **body}
        base = f"/v1/namespaces/{self.key.namespace}/agentruns/{run or self.key.name}"
        return await self.https.post(base + path, json=whole, headers={"Authorization": f"Bearer {bearer or self.bearer}"})

    async def claim(self) -> dict[str, Any]:
        answer = await self.post("/claim")
        assert answer.status_code == 200, answer.text
        claimed: dict[str, Any] = answer.json()
        self.token = claimed["token"]
        return claimed


def signed_again(bearer: str, key_file: Path, *, lives: float) -> str:
    """The same token signed anew by the API server's own key, to expire `lives` seconds from now."""
    head, claims = (json.loads(_decode(part)) for part in bearer.split(".")[:2])
    now = int(time.time())
    claims |= {"iat": now - 1000, "nbf": now - 1000, "exp": int(now + lives)}
    signed = ".".join(_encode(json.dumps(part).encode()) for part in (head, claims))
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    if isinstance(key, rsa.RSAPrivateKey):
        return f"{signed}.{_encode(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    r, s = utils.decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_encode(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()
