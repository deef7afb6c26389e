"""Places for connections, in all and for one address, and who gives way when they are taken."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Protocol

__all__ = ["Guest", "Places"]


class Guest(Protocol):
    """A connection."""

    def dismiss(self) -> None:
        """Close it now: another one takes its place."""
        ...


class _Line(Enum):
    """In this order they give way. A guest that is being served is in none."""

    UNKNOWN = "it never had a call under a good token"
    IDLE = "it had, and has none now"


class Places:
    """A guest that comes when all places are taken, of its address or of all, gets that of the one that has done nothing for longest.

    So connections that were opened to be held push out each other, and none that is being served is ever closed.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total, self._per_address = total, per_address
        self._addresses: dict[Guest, str] = {}
        self._count: Counter[str] = Counter()
        # By address, and under None of all of them; a dict keeps the order in which guests came.
        self._lines: dict[tuple[str | None, _Line], dict[Guest, None]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def arrive(self, guest: Guest, address: str) -> bool:
        """Give the guest a place; false when all are taken by guests that are being served."""
        if self._count.get(address, 0) >= self._per_address and not self._make_room(address):
            return False
        if len(self) >= self._total and not self._make_room(None):
            return False
        self._addresses[guest] = address
        self._count[address] += 1
        self._stand(guest, _Line.UNKNOWN)
        return True

    def serve(self, guest: Guest) -> None:
        """The guest has a call now."""
        self._step_out(guest)

    def rest(self, guest: Guest, *, known: bool) -> None:
        """The guest has no call any more. `known`: it once had one under a good token."""
        self._step_out(guest)
        if guest in self._addresses:
            self._stand(guest, _Line.IDLE if known else _Line.UNKNOWN)

    def leave(self, guest: Guest) -> None:
        """The guest is gone."""
        self._step_out(guest)
        address = self._addresses.pop(guest, None)
        if address is not None:
            self._count[address] -= 1
            if not self._count[address]:
                del self._count[address]

    def _make_room(self, scope: str | None) -> bool:
        for line in _Line:
            first = next(iter(self._lines.get((scope, line), ())), None)
            if first is not None:
                self.leave(first)
                first.dismiss()
                return True
        return False

    def _stand(self, guest: Guest, line: _Line) -> None:
        for scope in (self._addresses[guest], None):
            self._lines.setdefault((scope, line), {})[guest] = None

    def _step_out(self, guest: Guest) -> None:
        address = self._addresses.get(guest)
        for scope in (address, None):
            for line in _Line:
                standing = self._lines.get((scope, line))
                if standing is not None:
                    standing.pop(guest, None)
                    if not standing:
                        del self._lines[scope, line]
