"""The main job, shown on this machine alone: an agent is killed between a payment and the record of it, and nothing is paid twice.

`python -m e2e.demo` needs no cluster and no root. Provider, `stepfence local run` and worker are the real ones. Each command that it
prints is run as printed, and how it ends is judged by the provider's own log. It removes all that it made, also when it fails or is
interrupted, unless `--keep` is given. Exit codes: 0 one refund; 1 anything else; 128 and the signal's number when it was interrupted.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from e2e.provider.client import ProviderClient, matcher
from e2e.provider.server import running
from e2e.provider.wire import Entry, Fault, Happening, Route

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = Path("manifests/samples/refund.yaml")
RUN = "refund-4711"
NEXT = "Next: docs/quick-start.md does this by hand, docs/tutorial.md makes a plain agent restart-safe."
SECONDS = 45.0
END_SECONDS = 15.0
_ANSWER = re.compile(r"key (?P<key>\w+)\).*Answer with: (?P<command>.+)")
_SHOWN = (Happening.REQUEST, Happening.EFFECT, Happening.REPLAY, Happening.HANG, Happening.ANSWER)


class DemoError(Exception):
    """The story did not go as it should; the text says where."""


def say(text: str, *more: str) -> None:
    """One step of the story."""
    print(f"\n==> {text}", *(f"    {line}" for line in more), sep="\n", flush=True)


def environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What commands and worker get: state in that folder, this Python's programs first on PATH, no proxy, for all calls are to loopback."""
    kept = {name: value for name, value in environ.items() if not name.lower().endswith("_proxy")}
    path = f"{Path(sys.executable).parent}:{environ.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(folder)}


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of a command that was started here, and wait for its end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        assert process.stdout is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.stdout.read()  # its end comes when the last of the group is gone


def state_in(folder: Path) -> Path:
    """The state file that `stepfence local` keeps in a folder named by XDG_STATE_HOME."""
    return folder / "stepfence" / "local.db"


def workers_of(state: Path) -> list[int]:
    """Every process that `stepfence local` started for a state file, keepers too, whether it still runs or not."""
    mark, found = f"STEPFENCE_STATE_DIR={state}.workers/".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@dataclass
class Told:
    """A `stepfence local run` that goes on beside the story: what it tells is printed as it comes."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    over: bool = False

    async def listen(self) -> None:
        """Print line after line until its end."""
        assert self.process.stdout is not None
        while text := await self.process.stdout.readline():
            line = text.decode(errors="replace").rstrip()
            print(f"  | {line}", flush=True)
            async with self.grown:
                self.lines.append(line)
                self.grown.notify_all()
        async with self.grown:
            self.over = True
            self.grown.notify_all()

    async def until(self, text: str) -> str:
        """Wait for the first line with that text and return it. Raises `DemoError` at its end without one, and after `SECONDS`."""
        try:
            async with asyncio.timeout(SECONDS), self.grown:
                await self.grown.wait_for(lambda: self.over or self.line(text) is not None)
        except TimeoutError as late:
            raise DemoError(f"`stepfence local run` did not tell {text!r} within {SECONDS:.0f} s") from late
        if (line := self.line(text)) is None:
            raise DemoError(f"`stepfence local run` ended, with exit code {await self.process.wait()}, before it told {text!r}")
        return line

    def line(self, text: str) -> str | None:
        """The first line with that text."""
        return next((line for line in self.lines if text in line), None)

    async def code(self) -> int:
        """Wait for its end and return its exit code. Raises `DemoError` after `SECONDS`."""
        try:
            async with asyncio.timeout(SECONDS), self.grown:
                await self.grown.wait_for(lambda: self.over)
                return await self.process.wait()
        except TimeoutError as late:
            raise DemoError(f"the run was not over within {SECONDS:.0f} s") from late


async def stop(process: asyncio.subprocess.Process, state: Path) -> None:
    """End it and its workers, and wait until none is left. Raises `DemoError` when one is, after `END_SECONDS`."""
    if process.returncode is None:
        process.terminate()  # told to end, it starts no other worker
    ending = asyncio.create_task(process.wait())
    try:
        async with asyncio.timeout(END_SECONDS):
            while not ending.done() or workers_of(state):
                for pid in workers_of(state):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                await asyncio.wait({ending}, timeout=0.05)
                await asyncio.sleep(0.02)
    except TimeoutError as late:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise DemoError(f"these processes could not be ended: {[process.pid, *workers_of(state)]}") from late


def lines_of(entries: Sequence[Entry]) -> list[str]:
    """The provider's log as people read it."""
    texts = {Happening.EFFECT: "it is done", Happening.HANG: "no answer is sent", Happening.REPLAY: "known key: the first answer again"}
    shown = []
    for entry in entries:
        if entry.happening in _SHOWN:
            body = f" {json.dumps(entry.body)}" if entry.happening is Happening.EFFECT else ""
            text = texts.get(entry.happening) or (f"answered {entry.status}" if entry.happening is Happening.ANSWER else "asked")
            shown.append(f"  {entry.time.astimezone():%H:%M:%S}  {entry.route:<20}  {text}{body}")
    return shown


def refunds_in(entries: Sequence[Entry]) -> list[Entry]:
    """Every refund that the provider made."""
    return [entry for entry in entries if entry.happening is Happening.EFFECT and entry.route is Route.CREATE_REFUND]


def key_in(question: str) -> str:
    """The key that a question names. Raises `DemoError`."""
    return _asked(question)["key"]


def answer_to(question: str, entries: Sequence[Entry]) -> str:
    """Return the command that a person runs who has read the question and looked at the provider's log.

    The printed command says `Happened`. Raises `DemoError` where that would be a lie: this story has no other answer.
    """
    asked = _asked(question)
    if not any(entry.key == asked["key"] for entry in refunds_in(entries)):
        raise DemoError(f"the provider's log has no refund with key {asked['key']}: it did not happen, and `Happened` would be a lie")
    return asked["command"]


def _asked(question: str) -> re.Match[str]:
    asked = _ANSWER.search(question)
    if asked is None:
        raise DemoError(f"this question names no key or no command that answers it: {question}")
    return asked


def judge(entries: Sequence[Entry], code: int) -> str | None:
    """Say what is wrong with how it ended, None when nothing is. `code`: the exit code of `stepfence local run`."""
    made, sent = len(refunds_in(entries)), sum(e.happening is Happening.REQUEST and e.route is Route.CREATE_REFUND for e in entries)
    if made != 1:
        return f"the provider's log has {made or 'no'} refund{'' if made == 1 else 's'}, and it should have one"
    if sent != 1:
        return f"the provider was asked for the refund {sent} times, and should have been asked once"
    return None if code == 0 else f"the run did not succeed: `stepfence local run` ended with exit code {code}"


@dataclass
class Demo:
    """The story, told in one folder with one provider."""

    folder: Path
    url: str
    provider: ProviderClient

    async def start(self, command: str, *words: str) -> asyncio.subprocess.Process:
        """Print a command and start it as printed: by a shell, or as the very words that a shell would make of it.

        In a session of its own: Ctrl-C is for the demo, which then ends it.
        """
        print(f"$ {command}", flush=True)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *(words or ("/bin/sh", "-c", command)),
                cwd=ROOT,
                env=environment(os.environ, self.folder),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Half started and forgotten, a shell would be killed, and not what it has started.
            await end(await starting)
            raise

    async def show(self, command: str) -> None:
        """Print a command, run it as printed, and print what it says. Raises `DemoError` when it fails or takes too long."""
        process = await self.start(command)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(SECONDS):
                while line := await process.stdout.readline():
                    print(line.decode(errors="replace").rstrip(), flush=True)
                code = await process.wait()
        except TimeoutError as late:
            raise DemoError(f"that command took longer than {SECONDS:.0f} s") from late
        finally:
            await end(process)
        if code != 0:
            raise DemoError(f"that command ended with exit code {code}")

    @contextlib.asynccontextmanager
    async def told(self, command: str) -> AsyncIterator[Told]:
        """Run that command beside the block, and leave neither it nor a worker behind."""
        process = await self.start(command, *shlex.split(command))
        mine = Told(process)
        listening = asyncio.create_task(mine.listen())
        try:
            yield mine
        finally:
            await stop(process, state_in(self.folder))
            await asyncio.wait_for(listening, END_SECONDS)

    async def tell(self) -> None:
        """Tell it all. Raises `DemoError` unless the provider's log has one refund in the end."""
        say(
            f"1. A payment provider runs at {self.url}. It will make the next refund and never answer, as when a line breaks.",
            "It knows no idempotency keys, as many do not: whoever asks twice pays twice.",
        )
        await self.provider.tell(Route.CREATE_REFUND, after=Fault(hang=True), honour_key=False)
        await self.provider.tell(Route.CREATE_REFUND, honour_key=False, count=None)
        say(
            "2. The run: look up an order, refund it, notify the customer. It is the sample for Kubernetes; two things differ here:",
            "no image brings the agent, and no Service the provider.",
        )
        print(f"$ export XDG_STATE_HOME={shlex.quote(str(self.folder))}")
        manifest = shlex.quote(str(self.folder / SAMPLE.name))
        await self.show(f"sed -e 's|/opt/stepfence/||' -e 's|http://provider:8080|{self.url}|' {SAMPLE} >{manifest}")
        async with self.told(f"stepfence local run {manifest}") as run:
            await self.kill(run)
            await self.answer(run)
            await self.close(await run.code())

    async def kill(self, run: Told) -> None:
        """Kill the agent when the provider has paid and nobody here knows it."""
        await run.until("StepDone: step lookup-order")
        try:
            await self.provider.wait_for(matcher(Happening.HANG, route=Route.CREATE_REFUND), seconds=SECONDS)
        except TimeoutError as late:
            raise DemoError(f"no refund reached the provider within {SECONDS:.0f} s") from late
        say("3. The provider has paid, and the agent waits for the answer. Now, between effect and record, the agent is killed.")
        await self.show(f"stepfence local kill {RUN}")

    async def answer(self, run: Told) -> None:
        """Read the question, look at the provider, and answer as a person would."""
        question = await run.until("Answer with: ")
        say(
            "4. The record says that a refund was begun, not whether it happened. Doing it again might pay twice, leaving it out never.",
            "So nothing is sent: the run stops and asks, and no worker waits meanwhile.",
        )
        await self.show("stepfence local list")
        say("5. A person looks for the key of the question in the provider's own log:")
        command = answer_to(question, await self.log(key_in(question)))
        say("   The refund is there. So they answer with the command that the question gave:")
        await self.show(command)

    async def close(self, code: int) -> None:
        """Show how it ended. Raises `DemoError` unless the provider's log has one refund."""
        say("6. A second worker took what is done from the record, and did the rest.")
        await self.show("stepfence local list")
        say(f"The provider's own log ({self.url}/_log):")
        if (wrong := judge(await self.log(), code)) is not None:
            raise DemoError(wrong)

    async def log(self, key: str | None = None) -> list[Entry]:
        """Read the provider's log, of one key or of all, and print it."""
        entries = [entry for entry in (await self.provider.log()).entries if key in (None, entry.key)]
        print(*lines_of(entries), sep="\n", flush=True)
        return entries


@contextlib.contextmanager
def working_folder(*, keep: bool) -> Iterator[Path]:
    """A folder under the one for temporary files, removed after the block."""
    folder = Path(tempfile.mkdtemp(prefix="stepfence-demo-"))
    try:
        yield folder
    finally:
        if keep:
            tool = Path(sys.executable).parent / "stepfence"
            say(f"Left for you: {folder}. A look at it:", f"{tool} local --state {state_in(folder)} get {RUN}")
        else:
            shutil.rmtree(folder)


async def demo(heard: list[signal.Signals], *, keep: bool) -> None:
    """Set up, tell the story, clean up. The first signal cancels it, and is noted in `heard`; more do not disturb the cleaning up."""
    task = asyncio.current_task()
    assert task is not None

    def hear(number: signal.Signals) -> None:
        heard.append(number)
        if len(heard) == 1:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, hear, number)
    with working_folder(keep=keep) as folder:
        async with running() as url, ProviderClient(http=httpx.AsyncClient(base_url=url, trust_env=False)) as provider:
            await Demo(folder, url, provider).tell()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the state file and the workers' logs for a look around")
    keep: bool = parser.parse_args(arguments).keep
    if sys.platform != "linux":
        print("error: without a cluster Stepfence needs Linux; on a cluster: make demo-cluster", file=sys.stderr)
        return 1
    heard: list[signal.Signals] = []
    started = time.monotonic()
    try:
        asyncio.run(demo(heard, keep=keep))
    except asyncio.CancelledError:
        print(f"\ninterrupted; nothing {'runs' if keep else 'is left'}", file=sys.stderr)
        return 128 + heard[0]
    except (DemoError, httpx.HTTPError, OSError) as failed:
        print(f"\nFAILED: {failed}", file=sys.stderr)
        return 1
    say(f"One refund, by the provider's own log. Nothing is left running. {time.monotonic() - started:.0f} s", NEXT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
