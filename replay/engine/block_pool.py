"""The pool of physical KV blocks: who is free, in which order, and how often each is referenced.

The order of the free list is part of a failure: it decides which request gets whose old block. So it is explicit and
recorded. Blocks are handed out from the front; a request's blocks come back to the end, the last of its table first
(the tail of a sequence is the least likely to be shared, so it is the first to be reused).

With a prefix cache, a free block may still be known by the hash of what it holds. It keeps its place in the free list,
which is so the order of eviction: `share` takes it back out, and handing it out to somebody else evicts its hash.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from replay.engine.failure import Blame, blame
from replay.engine.prefix_cache import PrefixCache

Watch = Callable[[str, int], None]
"""Told of each change of a block as (event, block): "evict" before the "allocate" that caused it, "allocate" when it is
handed out, "share" for each further reference, "free" when the last reference goes. All of it happens while a step is
planned or committed; contents change later, when the step is computed, and its copies are made first of all."""


class BlockPool:
    """Hands out physical block ids ``0 .. num_blocks - 1``. A block is free exactly when its reference count is 0.

    ``free`` is an ordered set, next to be handed out first. ``cache`` forgets a block that is handed out.
    """

    def __init__(
        self, num_blocks: int, free: Iterable[int] | None = None, used: Iterable[Sequence[int]] | None = None
    ) -> None:
        """``free`` restores a recorded free list, with the block tables in ``used``; without those, blocks missing
        from it start with one reference each."""
        self.num_blocks = num_blocks
        self.free = OrderedDict[int, None].fromkeys(range(num_blocks) if free is None else free)
        self.ref_counts = [1] * num_blocks if used is None else [0] * num_blocks
        for block in self.free:
            self.ref_counts[block] = 0
        for table in used or ():
            for block in table:
                self.ref_counts[block] += 1
        self.cache: PrefixCache | None = None
        self.watch: Watch | None = None

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
        blocks = tuple(self.free.popitem(last=False)[0] for _ in range(count))
        for block in blocks:
            self.evict(block)
            self.ref_counts[block] += 1
            if self.watch is not None:
                self.watch("allocate", block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add one reference to each block; those that were free are taken out of the free list."""
        for block in blocks:
            self.free.pop(block, None)
            self.ref_counts[block] += 1
            if self.watch is not None:
                self.watch("share", block)

    def evict(self, block: int) -> None:
        """Make the prefix cache forget a block. Does nothing to one that it does not know."""
        if self.cache is not None and self.cache.forget(block) and self.watch is not None:
            self.watch("evict", block)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a table, last block first; those without references become free.

        Raises `ValueError` at a block that has none to drop, and blames it.
        """
        for block in reversed(blocks):
            if self.ref_counts[block] <= 0:
                error = ValueError(f"block {block} is released more often than it was taken")
                blame(error, Blame(block=block))
                raise error
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free[block] = None
                if self.watch is not None:
                    self.watch("free", block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless free list, reference counts and block tables tell the same story."""
        references = [0] * self.num_blocks
        for table in tables:
            for block in table:
                references[block] += 1
        assert references == self.ref_counts, "reference counts differ from the references in block tables"
        assert set(self.free) == {b for b, n in enumerate(self.ref_counts) if n == 0}, (
            "free list and reference counts disagree"
        )
        if self.cache is not None:
            self.cache.check_integrity(self.num_blocks)
