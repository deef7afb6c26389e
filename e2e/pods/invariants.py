"""What must hold of a run from each moment to the next, whatever is done to pods, servers and nodes."""

from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

_FINAL = ("state", "attempt", "token", "key", "payloadDigest", "result", "resultRecord", "resultDigest", "resultBytes")


@dataclass
class History:
    """All that was seen of one run (one uid). `see` returns what was broken by the newest sight."""

    name: str
    status: Object = field(default_factory=dict)
    holders: dict[int, tuple[str, str]] = field(default_factory=dict)

    def see(self, status: Object) -> list[str]:
        """Take in the next status, oldest first; one sentence for each invariant that it breaks."""
        before, self.status = self.status, status
        broken = [*_grows(before, status), *_ledger(before, status), *_terminal(before, status), *self._one_holder(before, status)]
        return [f"{self.name} at version {status.get('version', 0)}: {each}" for each in broken]

    def _one_holder(self, before: Object, after: Object) -> list[str]:
        """One holder a token: a claim grows the token, and nothing else makes a holder."""
        holder, token = after.get("holder"), after.get("fencingToken", 0)
        if not holder:
            return []
        now = (holder.get("podUID", ""), holder.get("requestID", ""))
        first = self.holders.setdefault(token, now)
        broken = [] if first == now else [f"token {token} was held by {first} and is held by {now}"]
        newest = max(self.holders)
        if token < newest:
            broken.append(f"the holder of token {token} holds the run after token {newest} was given out")
        return broken


def _grows(before: Object, after: Object) -> list[str]:
    return [
        f"{name} shrank from {before[name]} to {after.get(name)}"
        for name in ("fencingToken", "version")
        if name in before and after.get(name, -1) < before[name]
    ]


def _ledger(before: Object, after: Object) -> list[str]:
    broken = []
    entries = after.get("ledger", {})
    for step, old in before.get("ledger", {}).items():
        new = entries.get(step)
        if new is None:
            broken.append(f"the entry of step {step} was removed")
            continue
        if old["state"] == "Done":
            broken += [f"step {step} was Done and its {name} changed" for name in _FINAL if old.get(name) != new.get(name)]
        broken += [f"{name} of step {step} shrank" for name in ("attempt", "token") if new[name] < old[name]]
        if new["key"] != old["key"]:
            broken.append(f"the key of step {step} changed")
    token = after.get("fencingToken", 0)
    broken += [f"step {step} has a token above the run's" for step, entry in entries.items() if entry["token"] > token]
    return broken


def _terminal(before: Object, after: Object) -> list[str]:
    broken = []
    if before.get("outcome") and after.get("outcome") != before["outcome"]:
        broken.append(f"the outcome changed from {before['outcome']} to {after.get('outcome')}")
    if after.get("outcome"):
        entries = after.get("ledger", {}).items()
        broken += [f"step {step} is InFlight in a terminal run" for step, entry in entries if entry["state"] == "InFlight"]
    return broken
