"""The line before the byte budget. Pure: time goes in, what is due comes out.

Who has had the least goes first: among the namespaces that wait, and within one among its runs, counted in bytes. Of one run, what
settles something goes before what begins something. Across runs it does so too, but only while its run is at most a quarter of a
second's bytes ahead of the one that waits and has had the least, and its namespace likewise. So a report is not held up by what others
begin, and a run that floods the line with reports delays the others by that much and not by its whole queue.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stepfence.core.errors import Code, Refused
from stepfence.ports import RunKey

__all__ = ["AHEAD_SECONDS", "Line", "Ticket"]

_WAIT_SECONDS = 10.0
_WAITING = 1024
AHEAD_SECONDS = 0.25
# Of so many who do not wait it is remembered what they had.
_REMEMBERED = 256


@dataclass(eq=False, slots=True)
class Ticket:
    """One write in line. `until` in monotonic seconds; `number` counts arrivals."""

    key: RunKey
    size: int
    urgent: bool
    until: float
    number: int


class _Turns:
    """How many bytes each of several has had (start-time fair queueing).

    Who begins to wait stands where the one stands who waits and has had the least, or further on if it had more: nobody saves up by being
    away, and what was had ahead of the others is not forgotten by leaving for a moment.
    """

    def __init__(self) -> None:
        self._had: dict[str, float] = {}
        self._least = 0.0

    def __len__(self) -> int:
        return len(self._had)

    def enter(self, who: str, waiting: Collection[str]) -> None:
        """Let one begin to wait beside those who do."""
        self._advance(waiting)
        self._had[who] = max(self._had.get(who, 0.0), self._least)

    def first(self, heads: Mapping[str, Ticket], limit: float) -> Ticket:
        """Return whose turn it is, out of the first tickets of those who wait. `limit`: how far ahead an urgent one may be."""
        least = min(self._had[who] for who in heads)

        def rank(who: str) -> tuple[bool, float, int]:
            favoured = heads[who].urgent and self._had[who] - least <= limit
            return not favoured, self._had[who], heads[who].number

        return heads[min(heads, key=rank)]

    def charge(self, who: str, size: int, waiting: Collection[str]) -> None:
        """Note that one of those who wait is served."""
        self._advance(waiting)
        self._had[who] += size

    def forget(self, waiting: Collection[str]) -> None:
        """Once there are many, drop those who do not wait and are ahead of nobody, or by the least."""
        if len(self._had) <= 2 * _REMEMBERED + len(waiting):
            return
        away = sorted((who for who, had in self._had.items() if had > self._least and who not in waiting), key=self._had.__getitem__)
        self._had = {who: self._had[who] for who in (*waiting, *away[-_REMEMBERED:])}

    def knows(self, who: str) -> bool:
        """Whether what one had is remembered."""
        return who in self._had

    def _advance(self, waiting: Collection[str]) -> None:
        self._least = max(self._least, min((self._had[who] for who in waiting), default=0.0))


@dataclass(slots=True)
class _Lane:
    """Those of one run who wait, urgent ones apart, and their bytes."""

    urgent: deque[Ticket] = field(default_factory=deque)
    others: deque[Ticket] = field(default_factory=deque)
    urgent_bytes: int = 0
    bytes: int = 0

    def __len__(self) -> int:
        return len(self.urgent) + len(self.others)

    @property
    def first(self) -> Ticket:
        return self.urgent[0] if self.urgent else self.others[0]

    @property
    def last(self) -> Ticket:
        return self.others[-1] if self.others else self.urgent[-1]

    def add(self, ticket: Ticket) -> None:
        (self.urgent if ticket.urgent else self.others).append(ticket)
        self._count(ticket, ticket.size)

    def remove(self, ticket: Ticket) -> None:
        (self.urgent if ticket.urgent else self.others).remove(ticket)
        self._count(ticket, -ticket.size)

    def before(self, *, urgent: bool) -> int:
        return self.urgent_bytes if urgent else self.bytes

    def _count(self, ticket: Ticket, size: int) -> None:
        self.bytes += size
        self.urgent_bytes += size if ticket.urgent else 0


class Line:
    """A token bucket of bytes with a fair line before it.

    The bucket holds what one second brings. A write goes when the bucket holds its size, or is full for one that is larger than the
    bucket; the bucket then owes the rest.
    """

    def __init__(self, rate: float, now: float, *, wait: float = _WAIT_SECONDS, waiting: int = _WAITING) -> None:
        self._rate, self._level, self._at = rate, rate, now
        self._wait, self._waiting = wait, waiting
        self._count = 0
        self._tickets: dict[Ticket, None] = {}  # by arrival, which is by `until` too
        self._lanes: dict[str, dict[str, _Lane]] = {}
        self._namespaces = _Turns()
        self._runs: defaultdict[str, _Turns] = defaultdict(_Turns)
        self._pushed_out: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self._rate

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate, and with it the size of the bucket."""
        self._refill(now)
        self._rate = rate

    def join(self, key: RunKey, size: int, now: float, *, urgent: bool) -> Ticket | None:
        """Stand in line; None when the write may go at once.

        Raises `Refused(OVER_BUDGET)` with `retry_after` when the wait would be too long, or the line is full and no run has more places
        than this one. Else the last of the run that has the most gives its place up: see `expire`.
        """
        self._refill(now)
        expected = self._expected(key, size, urgent)
        if expected > self._wait or (len(self) >= self._waiting and not self._push_out(key)):
            raise Refused(Code.OVER_BUDGET, "too many bytes are being written", retry_after=max(1.0, expected - self._wait))
        ticket = Ticket(key, size, urgent, now + self._wait, self._count)
        self._count += 1
        self._add(ticket)
        if self._first() is ticket and self._level >= min(size, self._rate):
            self._take(ticket)
            return None
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a place in line up."""
        if ticket not in self._tickets:
            return
        del self._tickets[ticket]
        namespace, run = ticket.key
        lanes = self._lanes[namespace]
        lanes[run].remove(ticket)
        if not lanes[run]:
            del lanes[run]
            self._runs[namespace].forget(lanes)
        if not lanes:
            del self._lanes[namespace]
            self._namespaces.forget(self._lanes)
            if len(self._runs) > 3 * _REMEMBERED + len(self._lanes):
                self._runs = defaultdict(_Turns, {name: turns for name, turns in self._runs.items() if self._namespaces.knows(name)})

    def go(self, now: float) -> list[Ticket]:
        """Take those whose turn it is out of the line."""
        self._refill(now)
        due = []
        while (ticket := self._first()) is not None and self._level >= min(ticket.size, self._rate):
            self._take(ticket)
            due.append(ticket)
        return due

    def expire(self, now: float) -> list[Ticket]:
        """Take those who have waited too long out of the line; those who were pushed out are among them."""
        late, self._pushed_out = self._pushed_out, []
        while self._tickets and (ticket := next(iter(self._tickets))).until <= now:
            self.leave(ticket)
            late.append(ticket)
        return late

    def next_in(self, now: float) -> float | None:
        """Return the seconds until something is due or expires; None when nobody waits."""
        first = self._first()
        if first is None:
            return None
        self._refill(now)
        due = (min(first.size, self._rate) - self._level) / self._rate
        return max(0.0, min(due, next(iter(self._tickets)).until - now))

    def _refill(self, now: float) -> None:
        self._level = min(self._rate, self._level + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)

    def _add(self, ticket: Ticket) -> None:
        namespace, run = ticket.key
        if namespace not in self._lanes:
            self._namespaces.enter(namespace, self._lanes)
        lanes = self._lanes.setdefault(namespace, {})
        if run not in lanes:
            self._runs[namespace].enter(run, lanes)
        lanes.setdefault(run, _Lane()).add(ticket)
        self._tickets[ticket] = None

    def _take(self, ticket: Ticket) -> None:
        namespace, run = ticket.key
        self._namespaces.charge(namespace, ticket.size, self._lanes)
        self._runs[namespace].charge(run, ticket.size, self._lanes[namespace])
        self._level -= ticket.size
        self.leave(ticket)

    def _first(self) -> Ticket | None:
        if not self._tickets:
            return None
        limit = self._rate * AHEAD_SECONDS
        heads = {
            namespace: self._runs[namespace].first({run: lane.first for run, lane in lanes.items()}, limit)
            for namespace, lanes in self._lanes.items()
        }
        return self._namespaces.first(heads, limit)

    def _expected(self, key: RunKey, size: int, urgent: bool) -> float:
        """Return how long a write would wait, as far as can be told: each other run, and each other namespace, goes as far as this one."""
        mine = self._lanes.get(key.namespace, {})
        ahead = mine[key.name].before(urgent=urgent) if key.name in mine else 0
        ahead += sum(min(lane.before(urgent=urgent), ahead + size) for run, lane in mine.items() if run != key.name)
        others = (lanes.values() for namespace, lanes in self._lanes.items() if namespace != key.namespace)
        ahead += sum(min(sum(lane.before(urgent=urgent) for lane in lanes), ahead + size) for lanes in others)
        return (ahead + min(size, self._rate) - self._level) / self._rate

    def _push_out(self, key: RunKey) -> bool:
        """Make room in a full line for a run that has fewer places than another; False when none has more."""
        places = {namespace: sum(map(len, lanes.values())) for namespace, lanes in self._lanes.items()}
        most = max(places, key=lambda namespace: (places[namespace], namespace == key.namespace))
        lanes = self._lanes[most]
        run = max(lanes, key=lambda name: len(lanes[name]))
        if most == key.namespace and len(lanes[run]) <= len(lanes.get(key.name, ())):
            return False
        out = lanes[run].last
        self.leave(out)
        self._pushed_out.append(out)
        return True
