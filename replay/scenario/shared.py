"""Ids that stand for tokens which were not recorded, such that equal prefixes are equal again.

A record without token ids still tells which blocks a request took from the prefix cache, and so which of its tokens
were those of somebody else. Following every block through the steps gives one stand-in for each such pair.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count

from replay.engine.quirks import defects_of
from replay.engine.request import Request
from replay.engine.schedule import PrefixHit
from replay.scenario.scenario import UNKNOWN_TOKEN
from replay.targets.rebuild import Rebuilt


def prefix_ids(rebuilt: Rebuilt) -> dict[str, list[int]]:
    """By request id: ids of its tokens from the first on, for those that take part in a hit and lack an id.

    Known ids stay, unknown ones become `UNKNOWN_TOKEN`, or a lower number where others are known to be equal.
    """
    unknown = any(output.tokens is None for output in rebuilt.outputs.values())
    if not (rebuilt.config.prefix_cache and unknown):
        return {}
    follow = _Follow(rebuilt)
    follow.run()
    return follow.shared()


class _Follow:
    def __init__(self, rebuilt: Rebuilt) -> None:
        self._rebuilt = rebuilt
        self._size = rebuilt.config.block_size
        self._early = defects_of(rebuilt.quirks).register_early
        self._fresh = count(UNKNOWN_TOKEN - 1, -1)
        self._ids: dict[Request, list[int]] = defaultdict(list)
        self._tables: dict[Request, list[int]] = {}
        self._blocks: dict[int, list[int]] = {}  # ids that a block's slots were written for
        self._uses: dict[int, set[Request]] = defaultdict(set)
        self._means: dict[int, int] = {}  # what a stand-in turned out to be: somebody's known id stands there
        for request in rebuilt.start.running if rebuilt.start is not None else ():
            self._tables[request] = list(request.blocks)
            self._write(request, 0, request.num_computed)

    def run(self) -> None:
        for step in self._rebuilt.steps:
            hits = {hit.request: hit for hit in step.prefix_hits}
            for request in step.admitted:
                self._tables[request] = []
                if request in hits:
                    self._hit(hits[request])
            for chunk in step.chunks:
                table = self._tables.setdefault(chunk.request, [])
                table.extend(chunk.new_blocks)
                if self._early:
                    self._promise(chunk.request, len(table) - len(chunk.new_blocks), len(table))
                self._write(chunk.request, chunk.start, chunk.start + chunk.num_tokens)

    def shared(self) -> dict[str, list[int]]:
        """Stand-ins of one request alone say nothing."""
        found = {}
        for request, ids in self._ids.items():
            if self._rebuilt.outputs[request.id].tokens is not None:
                continue
            told = [self._told(one) for one in ids]
            if any(one != UNKNOWN_TOKEN for one in told):
                found[request.id] = told
        return found

    def _told(self, one: int) -> int:
        one = self._means.get(one, one)
        return one if one >= 0 or len(self._uses[one]) > 1 else UNKNOWN_TOKEN

    def _hit(self, hit: PrefixHit) -> None:
        blocks = list(hit.blocks)
        self._tables[hit.request] = blocks
        if hit.copied_from is not None:
            self._blocks[blocks[-1]] = list(self._blocks.get(hit.copied_from, []))
        ids = self._ids[hit.request]
        for place, block in enumerate(blocks):
            content = self._blocks.setdefault(block, [])
            while len(content) < self._size:  # written before the record began
                content.append(next(self._fresh))
            for position, one in enumerate(content, start=place * self._size):
                if position == len(ids):
                    own = self._recorded(hit.request, position)
                    if one < 0 <= own:
                        self._means.setdefault(one, own)
                    ids.append(one if own < 0 else own)
                    self._uses[ids[-1]].add(hit.request)

    def _promise(self, request: Request, first: int, stop: int) -> None:
        """Blocks that are known from their allocation on stand for tokens that may never be written."""
        ids = self._known(request, request.num_prompt)
        for place in range(first, stop):
            self._blocks[self._tables[request][place]] = ids[place * self._size : (place + 1) * self._size]

    def _write(self, request: Request, start: int, stop: int) -> None:
        ids = self._known(request, stop)
        table = self._tables[request]
        for position in range(start, stop):
            block, slot = divmod(position, self._size)
            content = self._blocks.setdefault(table[block], [])
            del content[slot:]
            content.append(ids[position])

    def _known(self, request: Request, stop: int) -> list[int]:
        """Ids of the request's first ``stop`` tokens, made up where they are not on record."""
        ids = self._ids[request]
        for position in range(len(ids), stop):
            one = self._recorded(request, position)
            ids.append(one if one >= 0 else next(self._fresh))
            self._uses[ids[-1]].add(request)
        return ids

    def _recorded(self, request: Request, position: int) -> int:
        """The id on record, `UNKNOWN_TOKEN` where none is. A prompt may be known and its answer not."""
        if position < request.num_prompt:
            return request.tokens[position]
        answer, place = self._rebuilt.outputs[request.id].tokens, position - request.num_prompt
        return answer[place] if answer is not None and place < len(answer) else UNKNOWN_TOKEN
