"""Runs a step on the model: packs its chunks into rows, computes them, draws the next tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from replay.engine import early_exit, multinomial, perplexity, sampler
from replay.engine.attention import Placed, exact_context, stock_context
from replay.engine.defects import NO_DEFECTS, Defects
from replay.engine.failure import Blame, blame
from replay.engine.kv_store import KVStore
from replay.engine.loaded import LoadedModel
from replay.engine.request import Request
from replay.engine.schedule import Chunk, Confidence, Sample, StepPlan
from replay.errors import PositionOverflow, ReplayError


class ModelRunner:
    """The executor that computes. One thread alone calls it; the model may be shared, the cache not."""

    def __init__(
        self, model: LoadedModel, kv: KVStore, *, digests: bool = False, defects: Defects = NO_DEFECTS
    ) -> None:
        self.model = model
        self.kv = kv
        self.digests = digests
        self.defects = defects

    def execute(self, plan: StepPlan, *, recorded: Mapping[str, int] | None = None) -> dict[str, Sample]:
        """Samples by request id, one for each chunk that samples. Keys and values go to the chunks' slots.

        ``recorded`` holds tokens by request id that a replay expects: it fills `Sample.gap` and changes nothing else.
        """
        if not plan.chunks:
            return {}
        for source, target in plan.copies:
            self.kv.copy_block(source, target)
        hidden = self.compute(plan.chunks, step=plan.index)
        ends = np.cumsum([chunk.num_tokens for chunk in plan.chunks]) - 1
        sampling = [(int(end), chunk.request) for end, chunk in zip(ends, plan.chunks, strict=True) if chunk.samples]
        if not sampling:
            return {}
        logits = self.logits(hidden, [end for end, _ in sampling])
        return {
            request.id: self.sample(
                row, request, position=request.num_tokens, expected=recorded.get(request.id) if recorded else None
            )
            for row, (_, request) in zip(logits, sampling, strict=True)
        }

    def compute(self, chunks: Sequence[Chunk], *, step: int) -> torch.Tensor:
        """Final hidden states [rows, hidden_size] of the chunks' tokens in order.

        Writes and stamps their slots. Every request must hold blocks for the tokens up to its chunk's end.
        """
        hidden = forward(self.model, [Placed(chunk, self.kv) for chunk in chunks])
        self.stamp(chunks, step=step)
        return hidden

    def stamp(self, chunks: Sequence[Chunk], *, step: int) -> None:
        """Note who wrote the slots of chunks that were just computed."""
        written = []
        for chunk in chunks:
            slots = self.kv.slots_of(chunk.request.blocks, chunk.start, chunk.start + chunk.num_tokens)
            self.kv.stamp(slots, step=step, owner=chunk.request.id, first_position=chunk.start)
            written.append(slots)
        self.kv.just_written = np.concatenate(written)

    def logits(self, hidden: torch.Tensor, rows: Sequence[int]) -> NDArray[np.float32]:
        """Logits [len(rows), vocab_size] of the chosen rows of `compute`'s result."""
        with torch.inference_mode():
            index = torch.as_tensor(list(rows), dtype=torch.long, device=hidden.device)
            result: NDArray[np.float32] = head(self.model, hidden.index_select(0, index)).float().cpu().numpy()
        return result

    def sample(
        self,
        row: NDArray[np.float32],
        request: Request,
        *,
        position: int,
        expected: int | None = None,
        digest_wanted: bool = True,
    ) -> Sample:
        """Draw the token at `position` of a request from its logits row, as if the tokens from there on were unknown.

        ``expected`` does not take part in the draw; how far below the top it lies becomes `Sample.gap`, and
        how unlikely it was `Sample.nll`. Without ``digest_wanted`` a runner that makes digests makes none here.
        """
        digest = None
        if self.digests and digest_wanted:
            digest = int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "big")
        if not sampler.is_finite(row):
            return Sample(token=-1, digest=digest, finite=False)
        try:
            token = self._draw(row, request, position)
        except Exception as error:
            blame(error, Blame(request_id=request.id, position=position))
            raise
        seen = self._confidence(row, request, position) if early_exit.wanted(request.flags) else None
        gap = nll = None
        if expected is not None and 0 <= expected < row.size:
            gap, nll = float(row.max() - row[expected]), perplexity.nll(row, expected)
        return Sample(
            token=token,
            digest=digest,
            margin=sampler.margin(row),
            gap=gap,
            nll=nll,
            confidence=seen,
            early_exit=seen is not None and early_exit.reached(request.flags, seen),
        )

    def _draw(self, row: NDArray[np.float32], request: Request, position: int) -> int:
        if self.defects.multinomial:
            return multinomial.draw(row, request, position=position, eos_token_ids=self.model.eos_token_ids)
        return sampler.draw(
            row,
            request.sampling,
            prompt=request.tokens[: request.num_prompt],
            output=request.tokens[request.num_prompt : position],
            sample_index=request.sample_index,
            position=position,
            eos_token_ids=self.model.eos_token_ids,
        )

    def _confidence(self, row: NDArray[np.float32], request: Request, position: int) -> Confidence:
        """That of the row which the token at `position` was drawn from."""
        adjusted = sampler.adjusted(
            row,
            request.sampling,
            prompt=request.tokens[: request.num_prompt],
            output=request.tokens[request.num_prompt : position],
            eos_token_ids=self.model.eos_token_ids,
        )
        return early_exit.confidence(adjusted)


def forward(model: LoadedModel, placed: Sequence[Placed]) -> torch.Tensor:
    """Final hidden states [rows, hidden_size] of all chunks' tokens in order; padding rows are cut off.

    Writes their keys and values. The chunks may belong to different caches: one step can serve several engines.
    """
    if model.shared is not None:
        return model.shared.forward(placed)
    if model.kernels == "exact" and model.device == "cpu" and torch.get_num_threads() != model.threads:
        raise ReplayError(
            f"the kernels were probed on {model.threads} threads and now run on {torch.get_num_threads()}",
            remedy="Set the number of threads before the model is loaded.",
        )
    rows = sum(one.chunk.num_tokens for one in placed)
    padded = model.sizes.pad_rows(rows)
    tokens = np.zeros(padded, dtype=np.int64)
    positions = np.zeros(padded, dtype=np.int64)
    row = 0
    for chunk in (one.chunk for one in placed):
        stop = chunk.start + chunk.num_tokens
        tokens[row : row + chunk.num_tokens] = chunk.request.tokens[chunk.start : stop]
        positions[row : row + chunk.num_tokens] = np.arange(chunk.start, stop)
        row += chunk.num_tokens
        if model.learned_positions and stop > model.max_position_embeddings:
            overflow = PositionOverflow(
                f"request {chunk.request.id} has a token at position {stop - 1}, "
                f"and the model has {model.max_position_embeddings} learned positions",
                remedy=f"Serve it with a max_model_len of {model.max_position_embeddings} or less.",
            )
            blame(overflow, Blame(request_id=chunk.request.id, position=stop - 1))
            raise overflow
    with torch.inference_mode(), model.settings.applied():
        if model.kernels == "exact":
            context = exact_context(placed, num_heads=model.num_heads, sizes=model.sizes, windows=model.windows)
        else:
            context = stock_context(placed, windows=model.windows)
        hidden: torch.Tensor = model.model(
            input_ids=torch.from_numpy(tokens)[None].to(model.device),
            position_ids=torch.from_numpy(positions)[None].to(model.device),
            use_cache=False,
            pplx_step=context,
        ).last_hidden_state[0, :rows]
    return hidden


def head(model: LoadedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [rows, vocab_size] of final hidden states [rows, hidden_size], in the model's dtype."""
    if model.shared is not None:
        return model.shared.head(hidden)
    rows = hidden.shape[0]
    with torch.inference_mode(), model.settings.applied():
        padded = hidden.new_zeros((model.sizes.pad_rows(rows), hidden.shape[1]))
        padded[:rows] = hidden
        logits: torch.Tensor = model.head(padded)[:rows]
    return logits
