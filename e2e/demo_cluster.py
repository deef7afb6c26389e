"""The main job, shown on a real cluster: an agent's pod is killed between a payment and the record of it, and nothing is paid twice.

`python -m e2e.demo_cluster` uses the cluster that `STEPFENCE_KUBECONFIG` names, else kind when Docker runs, else a cluster of its own
without Docker. It says what it installs and removes all that it made, unless `--keep` is given. Each command that it prints is run as
printed.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx

from e2e import install
from e2e.choice import NAMED_BY, Source, Target, acquire, choose, kubectl
from e2e.cluster import ClusterError, eventually
from e2e.pods.api import Api, proxied, service_url
from e2e.pods.outside import HANG, Outside
from e2e.provider.wire import Happening, Route

CLUSTER_NAME = "demo"
NAMESPACE = "stepfence-demo"
RUN = "refund-4711"
_WAIT_SECONDS = 120.0
_SOURCES = {
    Source.NAMED: f"the cluster that {NAMED_BY} names",
    Source.KIND: "a kind cluster, made for this and deleted afterwards",
    Source.LOCAL: "a cluster of two nodes without Docker, made for this and removed afterwards (its programs are built once: minutes)",
}


def say(text: str) -> None:
    """One step of the story."""
    print(f"\n==> {text}", flush=True)


@dataclass
class Demo:
    """The story, told on one cluster."""

    target: Target
    provider: Outside
    started: float = field(default_factory=time.monotonic)

    def show(self, *words: str) -> str:
        """Run kubectl in the demo's namespace, and print the command and what it says."""
        print(f"$ kubectl -n {NAMESPACE} {shlex.join(words)}", flush=True)
        said = kubectl(self.target, "-n", NAMESPACE, *words)
        print(said.rstrip(), flush=True)
        return said

    def run(self) -> dict[str, Any]:
        """The run as it stands."""
        found: dict[str, Any] = json.loads(kubectl(self.target, "-n", NAMESPACE, "get", "agentrun", RUN, "-o", "json"))
        return found

    def until(self, what: str, fact: Callable[[], Any]) -> Any:
        """Wait for a fact; on failure with the servers' last words."""
        evidence = lambda: install.evidence(self.target, install.NAMESPACE)  # noqa: E731  (a fact is a function)
        return eventually(what, fact, seconds=_WAIT_SECONDS, evidence=evidence)

    def tell(self) -> bool:
        """Tell it all; whether the provider's own log shows one refund."""
        self.start()
        self.kill()
        self.answer(self.doubt())
        return self.end()

    def start(self) -> None:
        """Apply the sample while the provider is told to hold the answer to the refund back."""
        say("The provider of this demo will make the refund and then hold its answer back, as a slow network would")
        rule = self.provider.tell(Route.CREATE_REFUND, after=HANG)
        say("A person applies an AgentRun of three steps: look up an order, pay it back, tell the customer")
        self.show("apply", "-f", str((install.SAMPLES / "refund.yaml").relative_to(install.ROOT)))
        self.until("refund at the provider", lambda: self.provider.hanging(rule))
        self.show("get", "agentruns")

    def kill(self) -> None:
        """Kill the worker between effect and record."""
        say("The money is on its way, and the agent has not heard of it yet. Now its pod is killed")
        pod = self.run()["status"]["holder"]["pod"]
        self.show("delete", "pod", pod, "--grace-period=1", "--wait=false")

    def doubt(self) -> str:
        """Show where the run stands, and what it asks; the command that answers."""
        question = self.until("question", lambda: next(iter(self.run()["status"].get("questions", {}).values()), None))
        say("Nobody can tell from the record whether the payment happened. So it is not repeated: the run stops and asks")
        self.show("get", "agentruns")
        self.until("end of the worker", lambda: "No resources" in self._pods() or "Running" not in self._pods())
        print(
            f"question: {question['message']}\nsince:    {question['since']}\nreason:   {question['reason']}\nanswer:   {question['patch']}"
        )
        return str(question["patch"])

    def _pods(self) -> str:
        words = ("get", "pods", "-l", f"stepfence.dev/run={RUN}", "--no-headers")
        return kubectl(self.target, "-n", NAMESPACE, *words) or "No resources"

    def answer(self, command: str) -> None:
        """Look at the provider, as a person would, and answer with the printed command as it is."""
        say("A person looks at the provider: the refund is there")
        self._print_log()
        say("So they answer with the printed command")
        print(f"$ {command}", flush=True)
        prelude = f'kubectl() {{ {shlex.join(self.target.kubectl)} "$@"; }}\n'
        done = subprocess.run(["/bin/sh", "-c", prelude + command], capture_output=True, text=True, timeout=60, check=False)
        print((done.stdout or done.stderr).rstrip(), flush=True)
        if done.returncode != 0:
            raise ClusterError("the printed command was refused")

    def end(self) -> bool:
        """Show how it ended; whether the provider's own log has one refund."""
        self.until("end of the run", lambda: self.run()["status"].get("outcome"))
        say("A new worker has replayed what was done and gone on")
        self.show("get", "agentruns")
        self.show("events", "--for", f"agentrun/{RUN}")
        refunds = self.provider.effects(route=Route.CREATE_REFUND)
        say(f"The provider's own log: {len(refunds)} refund{'' if len(refunds) == 1 else 's'}")
        self._print_log()
        well = len(refunds) == 1 and self.run()["status"]["outcome"] == "Succeeded"
        seconds = time.monotonic() - self.started
        say(f"Done in {seconds:.0f} s" if well else "FAILED: this is not what should have happened")
        return well

    def _print_log(self) -> None:
        entries = [entry for kind in (Happening.REQUEST, Happening.EFFECT, Happening.ANSWER) for entry in self.provider.entries(kind)]
        for entry in sorted(entries, key=lambda each: each.seq):
            made = json.dumps(entry.body) if entry.happening is Happening.EFFECT else entry.status or ""
            print(f"  {entry.time:%H:%M:%S}  {entry.route:<22} {entry.happening:<8} {made}")


def prepare(target: Target, cleanup: ExitStack, *, keep: bool) -> Demo:
    """Install what the demo needs, and have all that it made removed afterwards."""
    if install.installed(target):
        say("Stepfence is installed on this cluster already: it is used as it is, and left")
        install.load_images(target, say=say)
    else:
        say("Installing: images stepfence:dev and stepfence-samples:dev, CRDs, namespace stepfence-system with controller and gateway")
        if not keep and target.source is Source.NAMED:
            cleanup.callback(install.uninstall, target)
        install.install(target, say=say)
    say(f"Installing the sample provider in namespace {NAMESPACE}")
    if not keep and target.source is Source.NAMED:
        cleanup.callback(kubectl, target, "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=90s", seconds=100)
    kubectl(target, "create", "namespace", NAMESPACE)
    install.apply_provider(target, NAMESPACE)
    api = Api(cleanup.enter_context(proxied(target)))
    cleanup.callback(api.close)
    provider = Outside(service_url(api, NAMESPACE))
    cleanup.callback(provider.close)
    return Demo(target, provider)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when it went as it should."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.demo_cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="leave all of it for a look around")
    keep: bool = parser.parse_args(arguments).keep
    os.chdir(install.ROOT)
    try:
        say(f"This runs on {_SOURCES[choose(os.environ)]}")
        with acquire(CLUSTER_NAME, keep=keep) as target, ExitStack() as cleanup:
            well = prepare(target, cleanup, keep=keep).tell()
            if keep:
                say(f"Left for you: KUBECONFIG={target.kubeconfig}, namespaces {NAMESPACE} and {install.NAMESPACE}")
    except (ClusterError, httpx.HTTPError) as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
