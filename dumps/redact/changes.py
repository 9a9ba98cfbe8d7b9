"""What a redaction took out of a dump and what it left, counted by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dumps.schema import state_pb2 as pb

What = Literal["removed", "mapped", "hashed"]


@dataclass(slots=True)
class Change:
    """What happened to one field in all its places.

    ``path`` has ``[]`` for every element. ``count`` places of ``size`` bytes in all. ``example`` is what stood in the
    first of them: text of people, to be shown to nobody who did not ask, and escaped.
    """

    path: str
    what: What
    reason: str
    count: int = 0
    size: int = 0
    example: str | bytes = ""


@dataclass(slots=True)
class Kept:
    """Text that could be of people and stays, and why."""

    path: str
    reason: str
    count: int = 0
    size: int = 0


class Changes:
    """Collects changes, in the order in which their fields first came."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, What, str], Change] = {}
        self._kept: dict[tuple[str, str], Kept] = {}

    def add(self, path: str, what: What, reason: str, value: str | bytes, *, count: int = 1) -> None:
        change = self._made.setdefault((path, what, reason), Change(path, what, reason))
        if not change.count:
            change.example = value
        change.count += count
        change.size += _size(value)

    def count(self, path: str, what: What, reason: str, *, count: int, size: int) -> None:
        """Note ``count`` places at once, without an example."""
        if count:
            change = self._made.setdefault((path, what, reason), Change(path, what, reason))
            change.count += count
            change.size += size

    def keep(self, path: str, reason: str, value: str | bytes) -> None:
        kept = self._kept.setdefault((path, reason), Kept(path, reason))
        kept.count += 1
        kept.size += _size(value)

    @property
    def made(self) -> tuple[Change, ...]:
        return tuple(self._made.values())

    @property
    def kept(self) -> tuple[Kept, ...]:
        return tuple(self._kept.values())

    def record(self, state: pb.RuntimeState) -> None:
        """Write down in ``state`` what was removed, mapped and hashed, each once; what it says already stays."""
        known = {(one.path, one.what) for one in state.redactions}
        for change in self._made.values():
            if (change.path, change.what) not in known:
                known.add((change.path, change.what))
                state.redactions.add(path=change.path, what=change.what, reason=change.reason)


def _size(value: str | bytes) -> int:
    return len(value if isinstance(value, bytes) else value.encode("utf-8", "replace"))
