"""What the tests of real pods act on: the cluster with what is installed on it, and one namespace for each test."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

from e2e.choice import Target, kubectl
from e2e.cluster import ClusterError
from e2e.install import NAMESPACE, apply_provider, evidence
from e2e.pods.api import RUNS, Api, Object, service_url
from e2e.pods.outside import Outside
from e2e.pods.runs import RunSpec
from e2e.pods.view import RunView
from e2e.pods.watch import Watcher

_SECONDS = 60.0
_LOG_LINES = 40
PID_FILE = "/var/run/stepfence-state/agent.pid"

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The cluster, what watches it, and the provider that most tests share."""

    target: Target
    api: Api
    watcher: Watcher
    provider: Outside
    provider_url: str
    nodes: Sequence[str]

    def kubectl(self, *words: str, stdin: str | None = None, seconds: float = 60) -> str:
        """kubectl as administrator; its output."""
        return kubectl(self.target, *words, stdin=stdin, seconds=seconds)

    def servers(self, component: str) -> list[Object]:
        """The living pods of the controller or the gateway."""
        pods = self.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", f"app.kubernetes.io/component={component}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def leader(self) -> str:
        """The name of the controller pod that leads; empty while none does."""
        lease = self.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/stepfence-controller")
        holder = ((lease or {}).get("spec") or {}).get("holderIdentity") or ""
        return next((pod["metadata"]["name"] for pod in self.servers("controller") if pod["metadata"]["name"] in holder), "")


@dataclass
class Space:
    """One test's namespace. `allowed` says of which steps more than one effect is right, and why."""

    world: World
    namespace: str
    allowed: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    provider: Outside = field(init=False)
    _own: Outside | None = None

    def __post_init__(self) -> None:
        self.provider = self.world.provider

    def use_own_provider(self, name: str = "provider", *, start: bool = True) -> None:
        """Use a provider of this namespace, by default as the samples call it; it is started unless it runs already."""
        if start:
            apply_provider(self.world.target, self.namespace)
        self.provider = Outside(service_url(self.world.api, self.namespace, name))
        self._own = self.provider

    def close(self) -> None:
        """Let go of a provider of one's own."""
        if self._own is not None:
            self._own.close()

    # --- runs -------------------------------------------------------------------------------------------------------

    def spec(self, name: str, *script: Object, **more: Any) -> RunSpec:
        """A run whose worker performs a script against the shared provider."""
        return RunSpec(name, script, **{"provider": self.world.provider_url, **more})

    def start(self, spec: RunSpec) -> str:
        """Create a run; its name."""
        self.world.api.create(f"{RUNS}/namespaces/{self.namespace}/agentruns", spec.manifest())
        return spec.name

    def apply(self, manifest: Object | Path | str, *words: str) -> str:
        """`kubectl apply` in this namespace, as a person does it."""
        if isinstance(manifest, Path):
            return self.kubectl("apply", *words, "-f", str(manifest))
        text = manifest if isinstance(manifest, str) else yaml.safe_dump(manifest)
        return self.kubectl("apply", *words, "-f", "-", stdin=text)

    def run(self, name: str) -> RunView:
        """The last sight of a run."""
        return RunView(self.world.watcher.run(self.namespace, name) or {})

    def patch(self, name: str, spec: Mapping[str, Any]) -> httpx.Response:
        """A merge patch on `spec`, whatever comes of it."""
        return self.world.api.merge(f"{RUNS}/namespaces/{self.namespace}/agentruns/{name}", {"spec": spec})

    def answer(self, name: str, key: str, verdict: str, **more: Any) -> httpx.Response:
        """Answer a question."""
        return self.patch(name, {"decisions": {key: {"verdict": verdict, **more}}})

    def id_of(self, name: str) -> str:
        """How the provider's log names a run."""
        return f"{self.namespace}/{name}"

    # --- waiting ----------------------------------------------------------------------------------------------------

    def until(self, what: str, fact: Callable[[], T | None], *, seconds: float = _SECONDS) -> T:
        """Wait for a fact; on failure with all that this namespace can tell."""
        return self.world.watcher.until(what, fact, seconds=seconds, evidence=self.evidence)

    def until_run(self, name: str, what: str, fact: Callable[[RunView], T | None], *, seconds: float = _SECONDS) -> T:
        """Wait until a fact holds of a run."""
        return self.until(f"{what} of run {name}", lambda: fact(self.run(name)), seconds=seconds)

    def until_phase(self, name: str, *phases: str, seconds: float = _SECONDS) -> RunView:
        """Wait for a phase. A run that ends otherwise fails at once."""

        def reached(run: RunView) -> RunView | None:
            if run.terminal and run.phase not in phases:
                raise ClusterError(f"run {name} ended as {run.phase}, not as {' or '.join(phases)}\n{self.evidence()}")
            return run if run.phase in phases else None

        return self.until_run(name, f"phase {' or '.join(phases)}", reached, seconds=seconds)

    def until_hanging(self, rule: Any, *, seconds: float = _SECONDS) -> None:
        """Wait until a call hangs in a rule of the provider."""
        self.until("call that hangs at the provider", lambda: self.provider.hanging(rule) or None, seconds=seconds)

    def until_question(self, name: str, kind: str, *, seconds: float = _SECONDS) -> tuple[str, Object]:
        """Wait for an open question of a kind; its key and what it says."""
        return self.until_run(name, f"question of kind {kind}", lambda run: run.question(kind), seconds=seconds)

    def until_done(self, name: str, step: str, *, seconds: float = _SECONDS) -> None:
        """Wait until a step is Done."""
        self.until_run(name, f"Done of step {step}", lambda run: run.state(step) == "Done", seconds=seconds)

    def until_seen(self, name: str, version: int) -> None:
        """Wait until the watcher has seen a version of a run, so that nothing is left unchecked."""
        self.until_run(name, f"sight of version {version}", lambda run: run.status.get("version", 0) >= version, seconds=30)

    # --- pods -------------------------------------------------------------------------------------------------------

    def pods(self, name: str) -> list[Object]:
        """All worker pods of a run, oldest first."""
        pods = self.world.api.items(f"/api/v1/namespaces/{self.namespace}/pods", f"stepfence.dev/run={name}")
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def living_pods(self, name: str) -> list[Object]:
        """Worker pods that have not ended."""
        return [pod for pod in self.pods(name) if pod["status"].get("phase") not in {"Succeeded", "Failed"}]

    def holder_pod(self, name: str) -> str:
        """The pod that holds the run now; waits for one."""
        return str(self.until_run(name, "holder", lambda run: run.holder.get("pod")))

    def delete_pod(self, pod: str, *, grace: int | None = None) -> None:
        """Delete a pod."""
        self.world.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{pod}", grace=grace)

    def sigkill(self, pod: str) -> None:
        """SIGKILL to the agent's process, from inside its pod."""
        self.signal(pod, "KILL")

    def signal(self, pod: str, name: str) -> None:
        """A signal to the agent's process, from inside its pod."""
        try:
            self.kubectl("exec", pod, "-c", "worker", "--", "sh", "-c", f"kill -{name} $(cat {PID_FILE})")
        except ClusterError as failed:
            # With the agent its container ends, and may take the shell along that has just sent the signal: exit code 137.
            self.until(f"end of pod {pod}, in which a signal could not be sent ({failed})", lambda: self._ended(pod), seconds=10)

    def _ended(self, pod: str) -> bool:
        """Whether the agent's container has ended; a pod that is gone cannot tell."""
        found = self.world.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{pod}") or {}
        statuses = found.get("status", {}).get("containerStatuses", ())
        return any("terminated" in status["state"] for status in statuses if status["name"] == "worker")

    def kubectl(self, *words: str, stdin: str | None = None, seconds: float = 60) -> str:
        """kubectl in this namespace."""
        return self.world.kubectl("-n", self.namespace, *words, stdin=stdin, seconds=seconds)

    def paste(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a printed kubectl command verbatim in a shell, as a person would who is logged in to the cluster."""
        # The words are untouched: `kubectl` itself is made to mean this cluster's.
        prelude = f'kubectl() {{ {" ".join(self.world.target.kubectl)} "$@"; }}\n'
        return subprocess.run(["/bin/sh", "-c", prelude + command], capture_output=True, text=True, timeout=60, check=False)

    def events(self, name: str) -> list[Object]:
        """The Events about a run, oldest first."""
        found = self.world.api.items(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        mine = [event for event in found if event["regarding"].get("name") == name and event["regarding"].get("kind") == "AgentRun"]
        return sorted(mine, key=lambda event: str(event.get("eventTime") or event["metadata"]["creationTimestamp"]))

    # --- what is owed at the end of every test ------------------------------------------------------------------------

    def repeated_effects(self) -> list[str]:
        """Steps that had more effects than the test allows, by the provider's own log."""
        found = []
        for (run, step), count in self.provider.effects_by_step(self.namespace).items():
            most = self.allowed.get((run, step), (1, ""))[0]
            if count > most:
                found.append(f"step {step} of run {run} happened {count} times, at most {most} is right")
        return found

    def evidence(self) -> str:
        """Everything that helps to understand a failure: runs, pods, events, the servers' last words."""
        runs = self.world.api.items(f"{RUNS}/namespaces/{self.namespace}/agentruns")
        said = [yaml.safe_dump({run["metadata"]["name"]: [run["spec"].get("decisions"), run.get("status")]}) for run in runs]
        said.append(evidence(self.world.target, self.namespace))
        said += [self._pod_log(pod["metadata"]["name"]) for pod in self.world.api.items(f"/api/v1/namespaces/{self.namespace}/pods")]
        said.append(evidence(self.world.target, NAMESPACE, lines=_LOG_LINES))
        try:
            said.append(json.dumps([entry.model_dump(mode="json", exclude_none=True) for entry in self._provider_log()]))
        except httpx.HTTPError as failed:
            said.append(f"no log of the provider: {failed!r}")
        return "\n".join(said)

    def _provider_log(self) -> Sequence[Any]:
        from e2e.provider.wire import Happening

        every = [entry for kind in Happening for entry in self.provider.entries(kind)]
        return sorted((entry for entry in every if (entry.run or "").startswith(self.namespace)), key=lambda entry: entry.seq)

    def _pod_log(self, pod: str) -> str:
        try:
            return f"$ kubectl logs {pod}\n" + self.kubectl("logs", pod, "--all-containers", f"--tail={_LOG_LINES}")
        except ClusterError as failed:
            return str(failed)
