"""The pool of physical KV blocks: who is free, in which order, and how often each is referenced.

The order of the free list is part of a failure: it decides which request gets whose old block. So it is explicit and
recorded. Blocks are handed out from the front; a request's blocks come back to the end, the last of its table first
(the tail of a sequence is the least likely to be shared, so it is the first to be reused).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class BlockPool:
    """Hands out physical block ids ``0 .. num_blocks - 1``. A block is free exactly when its reference count is 0."""

    def __init__(self, num_blocks: int, free: Iterable[int] | None = None) -> None:
        """``free`` restores a recorded free list; blocks missing from it start with one reference each."""
        self.num_blocks = num_blocks
        self.free: deque[int] = deque(range(num_blocks) if free is None else free)
        self.ref_counts = [1] * num_blocks
        for block in self.free:
            self.ref_counts[block] = 0

    @property
    def num_free(self) -> int:
        return len(self.free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self.free)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take ``count`` blocks from the front of the free list. The caller has checked `num_free`."""
        if count > len(self.free):
            raise ValueError(f"asked for {count} blocks with {len(self.free)} free")
        blocks = tuple(self.free.popleft() for _ in range(count))
        for block in blocks:
            self.ref_counts[block] += 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a table, last block first; those without references become free."""
        for block in reversed(blocks):
            if self.ref_counts[block] <= 0:
                raise ValueError(f"block {block} is released more often than it was taken")
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free.append(block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless free list, reference counts and block tables tell the same story."""
        references = [0] * self.num_blocks
        for table in tables:
            for block in table:
                references[block] += 1
        assert references == self.ref_counts, "reference counts differ from the references in block tables"
        free = set(self.free)
        assert len(free) == len(self.free), "a block stands in the free list twice"
        assert free == {b for b, n in enumerate(self.ref_counts) if n == 0}, "free list and reference counts disagree"
