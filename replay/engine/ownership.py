"""Who held which KV block when: a bounded log, so that a failure can name the owners of its block over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

EVENTS = ("allocate", "share", "free", "evict")
"""Handed out; shared with a further request; given back by its last holder; forgotten by the prefix cache."""

MAX_EVENTS = 65_536
"""Events that are kept: about 10 MB. A pool of 512 blocks fills that in a hundred turns of all its blocks."""


class BlockEvent(NamedTuple):
    """``request`` is the id of the one that took or gave the block; None where no request did."""

    step: int
    block: int
    event: str
    request: str | None = None


class BlockHistory:
    """The latest events of all blocks, oldest first."""

    def __init__(self, most: int = MAX_EVENTS) -> None:
        self._events: deque[BlockEvent] = deque(maxlen=most)
        self.forgotten = 0

    def add(self, event: BlockEvent) -> None:
        if len(self._events) == self._events.maxlen:
            self.forgotten += 1
        self._events.append(event)

    def __iter__(self) -> Iterator[BlockEvent]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def of(self, block: int) -> list[BlockEvent]:
        """What is known of one block, oldest first."""
        return [event for event in self._events if event.block == block]


def in_words(events: list[BlockEvent]) -> str:
    """One line, e.g. "step 3 allocate r0; step 9 free r0; step 12 allocate r4"."""
    return "; ".join(f"step {one.step} {one.event}{f' {one.request}' if one.request else ''}" for one in events)
