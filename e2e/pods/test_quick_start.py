"""The quick start on Kubernetes, pasted block by block into a shell: it does what the page says."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e.choice import kubectl_program
from e2e.install import ROOT
from e2e.pods.world import Space
from e2e.provider.wire import Route

PAGE = ROOT / "docs/quick-start.md"
BLOCK = re.compile(r"^```sh cluster\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Shell:
    """A person's shell, logged in to the cluster. It ends at the first command that fails."""

    space: Space
    process: "subprocess.Popen[str]"
    output: Path
    count: int = 0

    def printed(self) -> str:
        return self.output.read_text(errors="replace")

    def paste(self, text: str) -> str:
        """Paste a block, wait for its end; what it printed."""
        self.count += 1
        before, end = len(self.printed()), f"end of block {self.count}\n"
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}echo end of block {self.count}\n")
        self.process.stdin.flush()
        self.until(end)
        return self.printed()[before:].removesuffix(end)

    def until(self, words: str) -> None:
        def shown() -> bool:
            assert self.process.poll() is None or words in self.printed(), self.printed()
            return words in self.printed()

        self.space.until(f"{words!r} in a shell", shown)


@contextmanager
def shell(space: Space, folder: Path) -> Iterator[Shell]:
    config = yaml.safe_load(space.world.target.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = space.namespace
    kubeconfig, output = folder / "kubeconfig", folder / "output"
    kubeconfig.write_text(yaml.safe_dump(config))
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{Path(kubectl_program()).parent}:{os.environ['PATH']}"}
    with output.open("w") as written:
        process = subprocess.Popen(
            ["/bin/sh", "-e"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield Shell(space, process, output)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def blocks() -> list[str]:
    """The page's blocks, with a port of this test's own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page = PAGE.read_text().replace("service/provider 8080", f"service/provider {port}:8080").replace("localhost:8080", f"localhost:{port}")
    return BLOCK.findall(page)


def test_the_quick_start_on_a_cluster_does_what_it_says(space: Space, tmp_path: Path) -> None:
    apply, forward, another, kill, describe, look, clean = blocks()
    with shell(space, tmp_path) as person:
        person.paste(apply)
        space.until_phase("refund-4711", "Succeeded", seconds=120)
        space.use_own_provider(start=False)
        person.paste(forward)
        person.until("Forwarding from 127.0.0.1:")
        person.paste(another)
        space.until_run("refund-4713", "refund under OPEN", lambda run: run.status.get("openStep") == "refund")
        space.until("refund at the provider", lambda: space.provider.effects(run=space.id_of("refund-4713"), step="refund"))
        person.paste(kill)
        _, question = space.until_question("refund-4713", "Reconcile")
        assert question["patch"] in person.paste(describe)
        key = space.run("refund-4713").entry("refund")["key"]
        assert sum(key in line for line in person.paste(look).splitlines()) == 1
        person.paste(question["patch"] + "\n")
        space.until_phase("refund-4713", "Succeeded", seconds=90)
        made = [(effect.run, effect.step) for effect in space.provider.effects(route=Route.CREATE_REFUND)]
        assert made == [(space.id_of(name), "refund") for name in ("refund-4711", "refund-4713")]
        person.paste(clean)
        space.provider = space.world.provider  # the page's own is gone, and what it had made was counted before
    assert space.kubectl("get", "agentruns,deployments", "-o", "name") == ""


def test_every_block_of_that_part_is_tried_but_for_what_makes_and_removes_the_cluster() -> None:
    part = PAGE.read_text().partition("## 2. On Kubernetes")[2]
    assert len(blocks()) == part.count("```") / 2
    left = [line.split()[:2] for line in re.findall(r"^    (\S.*)$", part, re.MULTILINE)]
    assert [words[:2] for words in left] == [
        ["make", "cluster"],
        ["export", "KUBECONFIG=…"],
        ["docker", "build"],
        ["docker", "build"],
        ["tools/uv", "run"],
        ["kubectl", "apply"],
        ["kubectl", "-n"],
        ["kubectl", "delete"],
        ["make", "cluster-down"],
    ]
