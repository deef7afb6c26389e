"""Gateways as processes of their own, over TLS, with the rights of the manifests and no more."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import yaml

from e2e.cluster import Cluster, eventually
from stepfence.gateway.proof_keys import KEYS_FILE
from tests.gateway import certificates

ROOT = Path(__file__).parents[2]
NAMESPACE = "stepfence-system"
PROOF_KEY = b"contract".ljust(32)
_READY_SECONDS = 60.0


def allow_gateways(cluster: Cluster, folder: Path) -> Path:
    """Install the gateway's account with its rights from the manifests; return a kubeconfig that has nothing else."""
    for name in ("namespace", "service-accounts", "rbac-gateway"):
        cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "manifests" / "base" / f"{name}.yaml"))
    token = cluster.kubectl("create", "token", "stepfence-gateway", "--namespace", NAMESPACE, "--duration=1h").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = folder / "gateway.kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


class GatewayProcess:
    """One gateway on free ports of this machine."""

    def __init__(self, name: str, folder: Path, kubeconfig: Path, **settings: str) -> None:
        self.name, self.folder, self.kubeconfig, self.settings = name, folder, kubeconfig, settings
        self.https_port, self.health_port = _free_port(), _free_port()
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        tls = self.folder / "tls"
        if not tls.exists():
            certificates.write(tls)
            (tls / KEYS_FILE).write_text(PROOF_KEY.hex())
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment = {
            **kept,
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(self.kubeconfig),
            "STEPFENCE_BIND": "127.0.0.1",
            "STEPFENCE_HTTPS_PORT": str(self.https_port),
            "STEPFENCE_HEALTH_PORT": str(self.health_port),
            "STEPFENCE_TLS_DIR": str(tls),
            "STEPFENCE_POD_NAMESPACE": NAMESPACE,
            **{f"STEPFENCE_{name.upper()}": value for name, value in self.settings.items()},
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "stepfence.gateway"], env=environment, stdout=log, stderr=log)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def wait_ready(self) -> None:
        """Wait until it says that it is ready."""
        eventually(f"{self.name} ready", lambda: self.health("readyz") == 200, seconds=_READY_SECONDS, evidence=self.log.read_text)

    def health(self, path: str) -> int:
        """The status code of a health path; 0 while nobody listens."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.health_port}/{path}", trust_env=False, timeout=10).status_code
        except httpx.TransportError:
            return 0

    def metrics(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.health_port}/metrics", trust_env=False, timeout=10).text

    def client(self) -> httpx.AsyncClient:
        """HTTPS that trusts this gateway's CA alone."""
        context = ssl.create_default_context(cafile=self.folder / "tls" / "ca.crt")
        return httpx.AsyncClient(base_url=f"https://127.0.0.1:{self.https_port}", verify=context, trust_env=False, timeout=60)

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def two_gateways(folder: Path, kubeconfig: Path, **settings: str) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    """Two replicas, both ready."""
    with (
        GatewayProcess("gateway-a", folder, kubeconfig, **settings) as first,
        GatewayProcess("gateway-b", folder, kubeconfig, **settings) as second,
    ):
        first.wait_ready()
        second.wait_ready()
        yield first, second


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
