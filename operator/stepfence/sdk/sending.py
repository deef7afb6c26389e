"""The mark where sending begins, and what is known of a request once its block is left.

Blocks may be entered and left in any task or thread. docs/design/0005-surely-not-applied.md has the reasons.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from enum import Enum

from stepfence.sdk.classify import Classifier, classify
from stepfence.sdk.errors import Fenced, NotApplied, moment
from stepfence.sdk.latch import Latch
from stepfence.sdk.outgoing import Exchange, Exchanges, chain, listening, watch

__all__ = ["Attempt", "Fate", "Sending"]


class Fate(Enum):
    """What is known of the request of a block."""

    OPEN = "open"
    # Left by a plain return: the program has an answer, and what it means is for the program to say.
    RETURNED = "returned"
    # Left by an error that says that nothing was applied.
    REFUSED = "refused"
    UNCERTAIN = "uncertain"


class Attempt:
    """The blocks of one attempt. `time_left` tells the seconds until its deadline."""

    def __init__(self, name: str, time_left: Callable[[], float], latch: Latch, classifiers: Sequence[Classifier]) -> None:
        self.name = name
        self.time_left = time_left
        self.latch = latch
        self.classifiers = classifiers
        # A block may be left by the garbage collector, wherever this thread is just then.
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.blocks: list[Sending] = []
        self.began = moment()
        # When `perform` ended; 0 while it runs.
        self.performed = 0
        self.over = False
        self.done = False
        self.wake: Callable[[], None] = _nothing

    @property
    def open(self) -> bool:
        """Whether a request may still be on its way."""
        with self.lock:
            return any(block.open for block in self.blocks)

    def close(self, *, done: bool) -> None:
        """Let no further block be entered: from here on the attempt is told. Unless it is done, what its blocks started sends no more."""
        with self.lock:
            self.over, self.done = True, done
            self.performed = self.performed or moment()

    @property
    def refused(self) -> bool:
        """Whether blocks were entered, and each was left by an error that says that nothing was applied."""
        return bool(self.blocks) and all(block.fate is Fate.REFUSED and not block.open for block in self.blocks)

    def refusal_of(self, error: BaseException) -> NotApplied | None:
        """Return what was said of this error, or of one that it was raised from, when it left a block."""
        for seen in chain(error):
            for block in self.blocks:
                if block.error is seen and block.verdict is not None:
                    return block.verdict
        return None

    def objection(self, word: NotApplied) -> str:
        """Return why the word that nothing was applied cannot be believed; empty when it can.

        A word of the program speaks of everything that was over when it was said. A verdict of ours speaks of one request.
        """
        said = word.said_at if word.said_at > self.began else self.performed
        through = [block for block in self.blocks if block.error is word]
        others = [block for block in self.blocks if block.fate is not Fate.REFUSED]
        if any(block.fate is Fate.UNCERTAIN for block in through):
            return "other requests were seen in its sending block, or it was not seen itself"
        if any(block.fate is Fate.UNCERTAIN for block in others):
            return "another request of this attempt may have been applied"
        if any(block.open or block.left > said for block in others):
            return "a request of this attempt was still on its way"
        if not word.of_one_request or (through and not others):
            return ""
        if not self.blocks:
            return "its request was not marked by step.sending()"
        alone = not through and len(others) == 1 and others[0].answered(word)
        return "" if alone else "it speaks of one request, and there was another one, or it was not seen"


class Sending:
    """The block in which one request goes out; both `with` and `async with`, to be used once."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._exchanges = Exchanges()
        self._unlisten: Callable[[], None] = _nothing
        self._entered = False
        # What was watched when it was entered, and whether nothing came to that until it was left: else requests may have gone out unseen.
        self._watched = 0
        self._saw_all = False
        # The moment at which it was left; 0 before.
        self.left = 0
        self.fate = Fate.OPEN
        self.error: BaseException | None = None
        self.verdict: NotApplied | None = None

    @property
    def open(self) -> bool:
        """Whether it is not left, or a request that was started in it goes on."""
        return not self.left or self._exchanges.in_flight

    def answered(self, word: NotApplied) -> bool:
        """Whether its only request was answered as the word says."""
        return word.status is not None and self._saw_all and self._exchanges.answered_alone(word.status)

    def began(self, method: str) -> Exchange:
        """A request goes out (see `Listener`)."""
        exchange = Exchange(method)
        with self._attempt.lock:
            if self._attempt.over:
                # Of a task that outlives the attempt, maybe for as long as the process. The step may be begun again already.
                if not self._attempt.done and not exchange.safe:
                    raise RuntimeError(f"{self._attempt.name} is over, and how it ended is told: nothing more is sent")
                return exchange
            self._exchanges.seen.append(exchange)
            if self.left and not exchange.safe:
                # By a task that was started in the block. Who left it did not know of this.
                self.fate = Fate.UNCERTAIN
        return exchange

    def ended(self, exchange: Exchange, *, status: int | None = None, error: BaseException | None = None) -> None:
        """A request has ended (see `Listener`)."""
        with self._attempt.lock:
            exchange.status, exchange.error, exchange.ended = status, error, True
        self._attempt.wake()

    def __enter__(self) -> None:
        attempt = self._attempt
        if isinstance(attempt.latch.stop, Fenced):
            raise attempt.latch.stop.again()
        if os.getpid() != attempt.process:
            raise RuntimeError(f"{attempt.name}: a sending block is entered in the process of the step, not in a fork of it")
        if attempt.time_left() <= 0:
            raise TimeoutError(f"{attempt.name} is past its deadline: nothing more is sent")
        self._watched = watch()
        with attempt.lock:
            if attempt.over:
                raise RuntimeError(f"{attempt.name} is over, and how it ended is told: nothing more is sent")
            if self._entered:
                raise RuntimeError(f"{attempt.name}: a sending block is for one request: call step.sending() again for the next one")
            self._entered = True
            attempt.blocks.append(self)
        self._unlisten = listening(self)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._unlisten()
        verdict = None
        try:
            verdict = None if error is None else classify(error, self._attempt.classifiers)
        finally:
            with self._attempt.lock:
                self._saw_all = watch() == self._watched
                self.fate, self.error = self._decide(error, verdict), error
                self.verdict = verdict if self.fate is Fate.REFUSED else None
                self.left = moment()
            self._attempt.wake()

    def _decide(self, error: BaseException | None, verdict: NotApplied | None) -> Fate:
        exchanges = self._exchanges
        if error is None:
            return Fate.UNCERTAIN if exchanges.contradicts() else Fate.RETURNED
        if verdict is None:
            return Fate.UNCERTAIN
        if not verdict.of_one_request:
            return Fate.UNCERTAIN if exchanges.contradicts(None if verdict is error else error) else Fate.REFUSED
        sure = exchanges.nothing_sent() if verdict.status is None else exchanges.answered_alone(verdict.status)
        return Fate.REFUSED if sure and self._saw_all else Fate.UNCERTAIN

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)


def _nothing() -> None:
    return None
