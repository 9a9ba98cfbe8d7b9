"""Recorded answers that the window will not draw: they are drawn again in a cache of their own, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from replay.engine.request import Request
from replay.engine.runner import ModelRunner
from replay.targets.forward import Forward
from replay.targets.rebuild import Rebuilt


def outside(rebuilt: Rebuilt, running: Sequence[Request], window: int, last: int) -> list[Request]:
    """Copies, with their whole answers, of those requests whose tokens the steps ``window .. last`` will not all
    draw. ``running`` are those whose KV is computed up to the window anyway, and with it their tokens so far; but not
    those of one that was preempted and is being computed again in chunks when the window begins."""
    copies = []
    for request in rebuilt.requests:
        output = rebuilt.outputs[request.id]
        if not output.tokens:
            continue
        begun_in_window = not output.drawn_before and bool(output.steps) and output.steps[0] >= window
        ends_in_window = bool(output.steps) and window <= output.steps[-1] <= last
        drawn_so_far = request in running and request.num_computed >= request.num_tokens - 1
        if not ((drawn_so_far or begun_in_window) and ends_in_window):
            tokens = request.tokens[: request.num_prompt] + list(output.tokens)
            copies.append(replace(request, tokens=tokens, num_computed=0, blocks=[]))
    return copies


def verify(copies: Sequence[Request], like: ModelRunner, forward: Forward, *, block_size: int, quant_bits: int) -> None:
    """Draw whole answers again, on the model and with the defects of ``like``. Raises `BudgetSpent`."""
    if not copies:
        return
    most = max(-(-copy.num_tokens // block_size) for copy in copies)
    kv = like.model.kv_store(num_blocks=most, block_size=block_size, quant_bits=quant_bits)
    runner = ModelRunner(like.model, kv, digests=True, defects=like.defects)
    for copy in copies:
        copy.blocks = list(range(-(-copy.num_tokens // block_size)))
        forward.run(runner, copy, copy.num_tokens - 1)
