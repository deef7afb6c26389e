"""Controllers as processes of their own, with the rights of the manifests and no more."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import yaml

from e2e.cluster import Cluster, eventually

ROOT = Path(__file__).parents[2]
NAMESPACE = "stepfence-system"
_READY_SECONDS = 60.0


def allow_controllers(cluster: Cluster, folder: Path) -> Path:
    """Install the controller's account with its rights from the manifests; return a kubeconfig that has nothing else."""
    for name in ("namespace", "service-accounts", "rbac-controller"):
        cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "manifests" / "base" / f"{name}.yaml"))
    token = cluster.kubectl("create", "token", "stepfence-controller", "--namespace", NAMESPACE, "--duration=1h").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = folder / "controller.kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


class ControllerProcess:
    """One controller with its health on a free port of this machine."""

    def __init__(self, name: str, folder: Path, kubeconfig: Path) -> None:
        self.name, self.kubeconfig = name, kubeconfig
        self.log = folder / f"{name}.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment = {
            **kept,
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(self.kubeconfig),
            "STEPFENCE_HEALTH_HOST": "127.0.0.1",
            "STEPFENCE_HEALTH_PORT": str(self.port),
            "STEPFENCE_POD_NAMESPACE": NAMESPACE,
            "STEPFENCE_POD_NAME": self.name,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "stepfence.controller"], env=environment, stdout=log, stderr=log)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            finally:
                self._process.kill()
                self._process.wait()

    def ready(self) -> Self:
        """Wait until it says that it is ready."""
        eventually(f"{self.name} ready", self._ready, seconds=_READY_SECONDS, evidence=self.log.read_text)
        return self

    def _ready(self) -> bool:
        self.require_alive()
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def require_alive(self) -> None:
        """Raise `AssertionError`, with its log, when it has ended."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} has ended with {self._process.returncode}:\n{self.log.read_text()[-4000:]}"

    def figure(self, name: str) -> float:
        """One figure of its metrics, 0 when it has none of that name."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)
