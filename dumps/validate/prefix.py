"""Rules of the prefix cache: what it hands out was written, holds the tokens it stands for, and is known by its hash.

The walk over the steps in `dumps.validate.schedule` says who writes which block; here it is kept what lies in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dumps.prefix_hash import HASH_BYTES, NO_PARENT, chain_of
from dumps.schema import state_pb2 as pb
from dumps.validate.finding import Finding, Findings, check_le32, check_range, whole_ids


@dataclass(frozen=True, slots=True)
class Contents:
    """The first ``filled`` slots of a block hold the request's tokens from block ``index`` of its table on."""

    request: int
    index: int
    filled: int


class PrefixWalk:
    """What lies in each block, as far as the record tells, and what the cache knew when it began."""

    def __init__(self, state: pb.RuntimeState, block_size: int) -> None:
        self._state = state
        self._size = block_size
        self._contents: dict[int, Contents] = {}
        self._start = {entry.block: entry for entry in state.scheduler.start.prefix_hashes}
        self._chains: dict[int, list[bytes]] = {}

    def start(self, tables: dict[int, list[int]], computed: dict[int, int]) -> Findings:
        """Take the running requests' blocks as written, and check what the cache knew against them."""
        for request, blocks in tables.items():
            for index, block in enumerate(blocks):
                filled = min(max(computed.get(request, 0) - index * self._size, 0), self._size)
                self._contents[block] = Contents(request, index, filled)
        entries = self._state.scheduler.start.prefix_hashes
        yield from self._entries(entries, "scheduler.start.prefix_hashes", explained=False)

    def hit(self, hit: pb.PrefixHit, blocks: Sequence[int], path: str) -> Findings:
        """Check what an admitted request is given. Its last block becomes what is copied into it."""
        chain = self._chain(hit.request)
        whole, rest = divmod(hit.num_tokens, self._size)
        given = [*blocks[:whole], *([hit.copied_from] if rest and hit.HasField("copied_from") else [])]
        for index, block in enumerate(given):
            held = self._contents.get(block)
            if held is not None and held.filled < self._size:
                message = f"block {block} is given out, and {held.filled} of its {self._size} tokens were written"
                yield Finding("prefix.unwritten", path, message)
            elif index < len(chain) and (known := self._hash(block)) is not None and known != chain[index]:
                message = f"block {block} holds other tokens than those of request {hit.request} at its place {index}"
                yield Finding("prefix.foreign", path, message)
        if rest and len(given) > whole and blocks:
            held = self._contents.get(given[-1])
            self.taken(blocks[-1])
            if held is not None:
                self._contents[blocks[-1]] = Contents(held.request, held.index, min(rest, held.filled))

    def taken(self, block: int) -> None:
        """A block is handed out, and what the cache knew of it is forgotten."""
        self._start.pop(block, None)
        self._contents[block] = Contents(-1, 0, 0)

    def wrote(self, request: int, table: Sequence[int], start: int, stop: int) -> None:
        """Tokens ``start .. stop - 1`` of a request were computed."""
        for index in range(start // self._size, min(-(-stop // self._size), len(table))):
            self._contents[table[index]] = Contents(request, index, min(stop - index * self._size, self._size))

    def spoilt(self, table: Iterable[int]) -> None:
        """A request ended by numbers that are not finite; the cache forgot its blocks."""
        for block in table:
            self._start.pop(block, None)

    def end(self) -> Findings:
        """What the cache knew at the end of the record: all of it was written, or known when the record began."""
        entries = self._state.kv.prefix_hashes
        yield from self._entries(entries, "kv.prefix_hashes", explained=True)
        kept = {entry.block for entry in entries}
        for block in self._start:
            if block not in kept:
                message = f"block {block} was known when the record began, and nothing says why it was forgotten"
                yield Finding("prefix.lost", "kv.prefix_hashes", message)

    def _entries(self, entries: Sequence[pb.PrefixHash], path: str, *, explained: bool) -> Findings:
        for number, entry in enumerate(entries):
            held, where = self._contents.get(entry.block), f"{path}[{number}]"
            if held is None:
                known = self._start.get(entry.block)
                if explained and (known is None or known.hash != entry.hash):
                    yield Finding("prefix.unexplained", where, f"block {entry.block}: no step of the record wrote it")
            elif held.filled < self._size:
                message = f"block {entry.block} is known, and {held.filled} of its {self._size} tokens were written"
                yield Finding("prefix.unwritten", where, message)
            else:
                yield from self._recomputed(entry, held, where)

    def _recomputed(self, entry: pb.PrefixHash, held: Contents, where: str) -> Findings:
        chain = self._chain(held.request)
        if held.index >= len(chain):
            return
        parent = chain[held.index - 1] if held.index else NO_PARENT
        for name, wanted in (("hash", chain[held.index]), ("parent", parent)):
            if getattr(entry, name) != wanted:
                message = f"of block {entry.block} is not that of request {held.request}'s tokens"
                yield Finding("prefix.hash", f"{where}.{name}", message)

    def _hash(self, block: int) -> bytes | None:
        """What a full block stands for, where its tokens are known, or its hash from before the record."""
        held = self._contents.get(block)
        if held is None:
            return self._start[block].hash if block in self._start and self._tells_tokens else None
        chain = self._chain(held.request)
        return chain[held.index] if held.index < len(chain) else None

    def _chain(self, request: int) -> list[bytes]:
        """Hashes of a request's full blocks; none where its tokens are not in the dump."""
        if request not in self._chains:
            tokens: list[int] = []
            if self._tells_tokens and 0 <= request < len(self._state.requests):
                recorded = self._state.requests[request]
                if recorded.HasField("prompt_token_ids") and recorded.HasField("output_token_ids"):
                    tokens = whole_ids(recorded.prompt_token_ids) + whole_ids(recorded.output_token_ids)
            self._chains[request] = chain_of(tokens, self._size) if self._size else []
        return self._chains[request]

    @property
    def _tells_tokens(self) -> bool:
        """At record level "shape" hashes are keyed with a secret, so that they tell nothing of the text."""
        return self._state.manifest.record_level != "shape"


def check_hashes(entries: Sequence[pb.PrefixHash], num_blocks: int, path: str) -> Findings:
    """Form of a list of hashes: sizes, and each block and each hash once."""
    blocks: set[int] = set()
    hashes: set[bytes] = set()
    for number, entry in enumerate(entries):
        where = f"{path}[{number}]"
        yield from check_range("kv.ids", f"{where}.block", [entry.block], num_blocks, "block")
        if len(entry.hash) != HASH_BYTES or len(entry.parent) not in (0, HASH_BYTES):
            yield Finding("prefix.hash", where, f"a hash has {HASH_BYTES} bytes, and a parent as many or none")
        if entry.hash == entry.parent:
            yield Finding("prefix.hash", where, "its own parent")
        if entry.block in blocks or entry.hash in hashes:
            yield Finding("prefix.twice", where, f"block {entry.block} or its hash stands twice")
        blocks.add(entry.block)
        hashes.add(entry.hash)
    yield from _circle(entries, path)


def _circle(entries: Sequence[pb.PrefixHash], path: str) -> Findings:
    """Parents that lead back to where they began. A parent need not be known itself: it may have been evicted."""
    parents = {entry.hash: entry.parent for entry in entries if entry.parent and entry.parent != entry.hash}
    ends: set[bytes] = set()
    for number, entry in enumerate(entries):
        chain, one = set[bytes](), entry.hash
        while one in parents and one not in ends and one not in chain:
            chain.add(one)
            one = parents[one]
        if one in chain:
            yield Finding("prefix.hash", f"{path}[{number}].parent", "its parents go round in a circle")
        ends |= chain


def check_hit(state: pb.RuntimeState, step: pb.Step, hit: pb.PrefixHit, block_size: int, path: str) -> Findings:
    """Form of one hit: of a request that was admitted, with the blocks that its tokens take, and a last one to draw."""
    num_blocks = state.engine.num_blocks or state.kv.num_blocks
    yield from check_le32("prefix.hit", f"{path}.blocks", hit.blocks)
    blocks = whole_ids(hit.blocks)
    yield from check_range("kv.ids", f"{path}.blocks", blocks, num_blocks, "block")
    if hit.HasField("copied_from"):
        yield from check_range("kv.ids", f"{path}.copied_from", [hit.copied_from], num_blocks, "block")
    if state.HasField("engine") and not state.engine.prefix_cache:
        yield Finding("prefix.off", path, "a hit in an engine without a prefix cache")
    if hit.request not in step.admitted:
        yield Finding("prefix.hit", f"{path}.request", f"request {hit.request} was not admitted in this step")
    if not block_size:
        return
    whole, rest = divmod(hit.num_tokens, block_size)
    if hit.num_tokens < 1 or len(blocks) != whole + (rest > 0):
        message = f"{hit.num_tokens} tokens in {len(blocks)} blocks of {block_size}"
        yield Finding("prefix.hit", f"{path}.num_tokens", message)
    if hit.HasField("copied_from") != (rest > 0):
        message = "a block that is not full is a copy, and only such a one"
        yield Finding("prefix.hit", f"{path}.copied_from", message)
