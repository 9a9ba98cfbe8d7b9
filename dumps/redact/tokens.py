"""Token ids mapped by a secret permutation, and the hashes of prefix blocks that follow from them.

The permutation is one cycle through the whole vocabulary, in an order that a key decides which is thrown away: no id
stands for itself, but for the model's end-of-sequence ids, which stay so that answers end where they did. Equal ids
stay equal, in all requests of the dump, so shared prefixes are still shared. It is a substitution: how often an id
occurs, and where it occurs again, can still be counted, and from a long text somebody may guess words.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from dumps.errors import LimitExceeded
from dumps.prefix_hash import HASH_BYTES, chain_of
from dumps.schema import state_pb2 as pb
from dumps.tensors import LE32_BYTES, from_le32, le32

MAX_VOCABULARY = 1 << 22
"""Larger ones are no model's, and each id costs a hash."""

_RANK_BYTES = 16


class TokenMap:
    """The permutation for one dump. Ids outside of the vocabulary, which no recorder writes, are moved among
    themselves; a negative id stands for an unknown token and stays."""

    def __init__(self, state: pb.RuntimeState, key: bytes) -> None:
        """``key``: 1 to 64 bytes. Raises `LimitExceeded` for a vocabulary that no model has."""
        size = state.model.vocab_size or max(_ids_of(state), default=0) + 1
        if size > MAX_VOCABULARY:
            raise LimitExceeded(
                f"model.vocab_size is {size}, the limit of a redaction is {MAX_VOCABULARY}",
                remedy="No model is that large: look at model.vocab_size with pplx-state dump.",
            )
        kept = set(state.model.eos_token_ids)
        order = _shuffled((token for token in range(size) if token not in kept), key)
        self._map: NDArray[np.int64] = np.arange(size, dtype=np.int64)
        self._map[order] = np.roll(order, -1)
        outside = _shuffled({token for token in _ids_of(state) if token >= size}, key)
        self._outside = {int(token): size + rank for rank, token in enumerate(outside)}

    def __getitem__(self, token: int) -> int:
        if token < 0:
            return token
        return int(self._map[token]) if token < self._map.size else self._outside.get(token, self._map.size)

    def many(self, tokens: Iterable[int]) -> list[int]:
        return [self[token] for token in tokens]

    def apply(self, state: pb.RuntimeState) -> int:
        """Map every token id in ``state``. Returns how many there were."""
        count = 0
        for request in state.requests:
            for name in ("prompt_token_ids", "output_token_ids"):
                if request.HasField(name):
                    tokens = _whole(getattr(request, name))
                    setattr(request, name, le32(self.many(tokens)))
                    count += len(tokens)
            for bias in request.sampling.logit_bias:
                bias.token_id = self[bias.token_id]
            count += len(request.sampling.logit_bias) + len(request.sampling.stop_token_ids)
            request.sampling.stop_token_ids[:] = self.many(request.sampling.stop_token_ids)
        for step in state.steps:
            for chunk in step.scheduled:
                if chunk.HasField("sampled_token"):
                    chunk.sampled_token = self[chunk.sampled_token]
                    count += 1
        return count


class HashMap:
    """Block hashes of the original and those that stand for them.

    A block whose tokens are in the dump gets the hash of its mapped tokens: a replay works it out from them, and must
    meet it. The hash of any other block is made anew with a key that is thrown away, since its tokens could be guessed
    and confirmed by it. Equal hashes stay equal, so chains are still chains.
    """

    def __init__(self, state: pb.RuntimeState, tokens: TokenMap, key: bytes) -> None:
        """``state`` is the original."""
        self._key = key
        self._known: dict[bytes, bytes] = {}
        size = state.engine.block_size or state.kv.block_size
        known = size and (state.kv.prefix_hashes or state.scheduler.start.prefix_hashes)
        for request in state.requests if known else ():
            ids = _whole(request.prompt_token_ids) + _whole(request.output_token_ids)
            self._known.update(zip(chain_of(ids, size), chain_of(tokens.many(ids), size), strict=True))

    def __getitem__(self, value: bytes) -> bytes:
        if not value:
            return value
        return self._known.get(value) or blake2b(value, digest_size=HASH_BYTES, key=self._key).digest()

    def apply(self, state: pb.RuntimeState) -> int:
        """Replace every block hash in ``state``. Returns how many blocks had one."""
        entries = [*state.kv.prefix_hashes, *state.scheduler.start.prefix_hashes]
        for entry in entries:
            entry.hash, entry.parent = self[entry.hash], self[entry.parent]
        return len(entries)


def _shuffled(tokens: Iterable[int], key: bytes) -> NDArray[np.int64]:
    ranked = sorted(
        tokens, key=lambda token: blake2b(token.to_bytes(4, "little"), digest_size=_RANK_BYTES, key=key).digest()
    )
    return np.array(ranked, dtype=np.int64)


def _ids_of(state: pb.RuntimeState) -> Iterable[int]:
    for request in state.requests:
        yield from _whole(request.prompt_token_ids)
        yield from _whole(request.output_token_ids)
        yield from request.sampling.stop_token_ids
        yield from (bias.token_id for bias in request.sampling.logit_bias)
    for step in state.steps:
        for chunk in step.scheduled:
            if chunk.HasField("sampled_token"):
                yield chunk.sampled_token


def _whole(data: bytes) -> list[int]:
    return from_le32(data[: len(data) // LE32_BYTES * LE32_BYTES])
