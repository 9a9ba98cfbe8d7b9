"""The prefix cache: which blocks hold the keys and values of which tokens, found by chained hashes of full blocks.

A block is registered when the keys and values of its last token are committed, never before it was written. The first
block with a hash keeps it. What is registered stays so when its last request has gone, until the pool hands the block
out again. The cache holds no references and no contents; the pool has the former, the KV store the latter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dumps.prefix_hash import NO_PARENT, CachedBlock, block_hash
from replay.engine.request import Request


class PrefixCache:
    """Blocks by hash, in order of registration.

    ``log`` collects registrations until somebody takes them (the flight recorder); None switches it off.
    """

    def __init__(self, block_size: int, entries: Iterable[CachedBlock] = ()) -> None:
        self.block_size = block_size
        self.log: list[CachedBlock] | None = None
        self._entries: dict[int, CachedBlock] = {}
        self._blocks: dict[bytes, int] = {}
        self._chains: dict[Request, list[bytes]] = {}
        for entry in entries:
            self._put(entry)

    @property
    def entries(self) -> list[CachedBlock]:
        """Registered blocks in order of registration (a copy)."""
        return list(self._entries.values())

    def __contains__(self, block: int) -> bool:
        return block in self._entries

    def chain(self, request: Request, num_blocks: int) -> Sequence[bytes]:
        """Hashes of the request's first full blocks, ``num_blocks`` of them or all there are.

        A block with an unknown token, which is negative, has none, nor have those behind it.
        """
        hashes = self._chains.setdefault(request, [])
        size = self.block_size
        for start in range(len(hashes) * size, min(num_blocks * size, request.num_tokens - size + 1), size):
            tokens = request.tokens[start : start + size]
            if min(tokens) < 0:
                break
            hashes.append(block_hash(hashes[-1] if hashes else NO_PARENT, tokens))
        return hashes[:num_blocks] if len(hashes) > num_blocks else hashes

    def longest_prefix(self, request: Request) -> list[int]:
        """Registered blocks that hold the request's first tokens, as many as follow one another."""
        found: list[int] = []
        for value in self.chain(request, request.num_tokens // self.block_size):
            block = self._blocks.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def register(self, request: Request, first: int, stop: int) -> None:
        """Make known the blocks ``first .. stop - 1`` of the request's table, whose tokens it has.

        A hash that another block has already keeps that one, and a block keeps the hash that it has.
        """
        hashes = self.chain(request, stop)
        for index in range(first, min(stop, len(hashes))):
            block = request.blocks[index]
            if hashes[index] not in self._blocks and block not in self._entries:
                entry = CachedBlock(block, hashes[index], hashes[index - 1] if index else NO_PARENT)
                self._put(entry)
                if self.log is not None:
                    self.log.append(entry)

    def forget(self, block: int) -> bool:
        """Drop a block's hash. Returns whether it had one."""
        entry = self._entries.pop(block, None)
        if entry is None:
            return False
        del self._blocks[entry.hash]
        if self.log:
            self.log = [logged for logged in self.log if logged is not entry]
        return True

    def drop(self, request: Request) -> None:
        """Forget the hashes worked out for a request that has ended. What it registered stays."""
        self._chains.pop(request, None)

    def take_log(self) -> list[CachedBlock]:
        """Registrations since the last call."""
        taken, self.log = self.log or [], []
        return taken

    def check_integrity(self, num_blocks: int) -> None:
        """Raise AssertionError unless blocks and hashes stand for each other, one to one."""
        assert {entry.hash: block for block, entry in self._entries.items()} == self._blocks, (
            "the prefix cache's blocks and hashes disagree"
        )
        assert all(0 <= block < num_blocks for block in self._entries), "a block outside the pool is registered"

    def check_table(self, request: Request, *, written: bool) -> None:
        """Raise AssertionError unless what is registered of a running request's table is what the request has there.

        With ``written``, no block may be registered before its last token is computed.
        """
        hashes = self.chain(request, len(request.blocks))
        for index, block in enumerate(request.blocks):
            entry = self._entries.get(block)
            if entry is None:
                continue
            assert index < len(hashes), f"block {block} of {request.id} is registered and not full"
            assert entry.hash == hashes[index], f"block {block} of {request.id} is registered for other tokens"
            parent = hashes[index - 1] if index else NO_PARENT
            assert entry.parent == parent, f"block {block} of {request.id} is registered behind another block"
            full = (index + 1) * self.block_size <= request.num_computed
            assert full or not written, f"block {block} of {request.id} was registered before it was written"

    def _put(self, entry: CachedBlock) -> None:
        self._entries[entry.block] = entry
        self._blocks[entry.hash] = entry.block
