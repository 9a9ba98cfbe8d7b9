"""The contents of shared and cached blocks where a replay begins to compute.

Up to there no model ran, and yet a step may read blocks that several requests share, or take blocks from the prefix
cache that no running request holds. All of them follow from tokens: a block is registered only once it was written, and
its hash stands for every token up to its end. So a cached block is computed from the tokens of a request that may still
be given it; one that nobody who is to come can hit is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replay.engine.block_checks import BlockChecks
from replay.engine.prefix_cache import PrefixCache
from replay.engine.recorded import RecordedStep
from replay.engine.request import Request
from replay.engine.runner import ModelRunner
from replay.targets.forward import Forward, written_by
from replay.targets.rebuild import RebuiltOutputs


@dataclass(slots=True)
class BlockContents:
    """Computes blocks at their recorded places, a shared one once. ``checks`` knows which step wrote each slot."""

    runner: ModelRunner
    forward: Forward
    steps: Sequence[RecordedStep]
    before: int
    checks: BlockChecks | None = None

    def compute(self, running: Sequence[Request], cached: Sequence[Request] = ()) -> None:
        """Compute what `running` requests hold, and the blocks in ``cached``: requests that are only a table each.

        Raises `BudgetSpent`.
        """
        size, done = self.runner.kv.block_size, set[int]()
        self.forward.total += sum(request.num_computed for request in cached)
        for request in running:
            # The prompt's last position predicts the first token of the answer, and is computed to compare that.
            start = min(size * self._leading(request, done), request.num_prompt - 1)
            self.forward.total -= start
            writers = written_by(self.steps, request, before=self.before)
            self.forward.run(self.runner, request, request.num_computed, writers, start=start)
            done.update(request.blocks[: request.num_computed // size])
        for request in cached:
            start = size * self._leading(request, done)
            self.forward.total -= start
            if start < request.num_computed:
                self.forward.run(self.runner, request, request.num_computed, start=start, check=False)
                done.update(request.blocks)
        self._stamp(done)

    def _leading(self, request: Request, done: set[int]) -> int:
        """How many of the request's first blocks are computed already."""
        full = request.blocks[: request.num_computed // self.runner.kv.block_size]
        return next((index for index, block in enumerate(full) if block not in done), len(full))

    def _stamp(self, blocks: set[int]) -> None:
        """Name the steps that wrote shared blocks, which are not those of the requests that hold them now."""
        if self.checks is None:
            return
        kv = self.runner.kv
        for block in blocks:
            slots = slice(block * kv.block_size, (block + 1) * kv.block_size)
            kv.written_step[slots] = self.checks.written_steps(block)


def within_reach(cache: PrefixCache | None, ahead: Sequence[Request], outputs: RebuiltOutputs) -> list[Request]:
    """The cached prefixes that requests still to be admitted can be given, each as a request that holds its blocks."""
    if cache is None:
        return []
    found = []
    for request in ahead:
        answer = outputs[request.id].tokens or ()
        tokens = [*request.tokens[: request.num_prompt], *answer]
        whole = replace(request, tokens=tokens if len(tokens) > request.num_tokens else list(request.tokens))
        blocks = cache.longest_prefix(whole)
        cache.drop(whole)
        if blocks:
            found.append(replace(whole, blocks=blocks, num_computed=len(blocks) * cache.block_size))
    return found
