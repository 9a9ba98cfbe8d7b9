"""Which answers of a modified replay are other ones than those recorded, and where the first begins to differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replay.engine.request import FinishCause, Request
from replay.targets.rebuild import RebuiltOutputs, RecordedOutput


def answers_changed(requests: Sequence[Request], outputs: RebuiltOutputs) -> dict[str, Any]:
    """Counts of the answers ``compared`` and, of those, ``as_recorded``, and the ``first_difference`` in step order.

    An answer is compared as far as both runs went: one that had not ended, here or there, says nothing about what would
    have come. One whose token ids are not in the dump is not compared.
    """
    compared = 0
    found: list[tuple[tuple[bool, int], dict[str, Any]]] = []
    for request in requests:
        output = outputs[request.id]
        if output.tokens is None:
            continue
        index = _differs_at(request, output)
        compared += index is not None or min(len(output.tokens), request.num_output) > 0
        if index is None:
            continue
        step = output.step_of(index)
        difference = {
            "request_id": request.id,
            "step": step,
            "output_index": index,
            "recorded": _at(output.tokens, index, output.cause),
            "replayed": _at(request.output, index, request.finish_cause),
        }
        # Past the recorded answer there is no step to name; it comes after all that were recorded.
        found.append(((step is None and index >= output.drawn_before, step or 0), difference))
    first = min(found, key=lambda one: one[0])[1] if found else None
    return {"compared": compared, "as_recorded": compared - len(found), "first_difference": first}


def _differs_at(request: Request, output: RecordedOutput) -> int | None:
    """The first place at which one run drew another token than the other, or had ended."""
    recorded, replayed = output.tokens or (), request.output
    common = min(len(recorded), len(replayed))
    for index in range(common):
        if recorded[index] != replayed[index]:
            return index
    longer = len(replayed) > common and output.cause is not None
    shorter = len(recorded) > common and request.finished
    return common if longer or shorter else None


def _at(tokens: Sequence[int], index: int, cause: FinishCause | None) -> str:
    """The token at a place of an answer, or how the answer had ended before it."""
    return f"token {tokens[index]}" if index < len(tokens) else f"end ({cause.value if cause else 'unknown'})"
