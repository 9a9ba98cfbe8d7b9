"""Descriptors of a replay: those that were open in the recorded process, and those that the replayed program opens.

A replayed descriptor is a real one, of the null device: its number is taken, and whatever reaches it past Python finds
nothing there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dumps.schema import state_pb2 as pb

# Before anybody stands in for them.
_open, _dup, _close = os.open, os.dup, os.close


@dataclass(frozen=True, slots=True)
class OpenDescriptor:
    """One descriptor. ``target`` is a recorded name of a file, or what the recording says ("socket:[123]")."""

    fd: int
    kind: str
    target: str
    replayed: bool
    """The replayed program opened it; else it was open when the dump was made."""

    file: Any = None
    """What plays it."""


class DescriptorMap(Mapping[int, OpenDescriptor]):
    """By number. Where both have one, the replayed program's comes first; ``recorded`` keeps the others."""

    def __init__(self, recorded: Iterable[pb.Descriptor] = ()) -> None:
        self.recorded = {one.fd: OpenDescriptor(one.fd, one.kind, one.target, replayed=False) for one in recorded}
        self._open: dict[int, OpenDescriptor] = {}
        self._lock = threading.Lock()
        self._null = -1

    def open(self, kind: str, target: str, file: Any = None) -> OpenDescriptor:
        """A new descriptor."""
        with self._lock:
            if self._null < 0:
                self._null = _open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            fd = _dup(self._null)
            self._open[fd] = OpenDescriptor(fd, kind, target, replayed=True, file=file)
            return self._open[fd]

    def replayed(self, fd: object) -> OpenDescriptor | None:
        """The replayed program's descriptor, None where it is not one of ours."""
        return self._open.get(fd) if isinstance(fd, int) else None

    def close(self, fd: int, real_close: Callable[[int], None] = _close) -> None:
        """Raises `KeyError` where it is not open."""
        with self._lock:
            del self._open[fd]
        real_close(fd)

    def close_all(self) -> None:
        """At the end of a replay."""
        for fd in list(self._open):
            self.close(fd)
        with self._lock:
            if self._null >= 0:
                _close(self._null)
            self._null = -1

    def __getitem__(self, fd: int) -> OpenDescriptor:
        return self._open.get(fd) or self.recorded[fd]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._open.keys() | self.recorded.keys()))

    def __len__(self) -> int:
        return len(self._open.keys() | self.recorded.keys())
