"""Finds where a non-finite value began: in which layer, block and slot of the KV cache, and who wrote it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from replay.engine.failure import NonFinitePlace
from replay.engine.kv_store import KVStore
from replay.engine.request import Request

TENSORS = ("key", "value")


def first_non_finite(kv: KVStore, requests: Sequence[Request]) -> NonFinitePlace:
    """The first non-finite value in the slots that `requests` have computed, or that the latest step wrote for them.

    Searched by layer, then key before value, then physical block, then slot. Other slots are not looked at: nothing
    reads them. With a clean cache the place is "logits".
    """
    slots = _slots_in_use(kv, requests)
    index = torch.from_numpy(slots).to(kv.data.device)
    for layer in range(kv.num_layers):
        finite = kv.finite(layer, index)
        for which, tensor in enumerate(TENSORS):
            bad = (~finite[:, which]).nonzero()
            if bad.numel() == 0:
                continue
            slot = int(slots[int(bad[0, 0])])
            position, step = int(kv.position[slot]), int(kv.written_step[slot])
            return NonFinitePlace(
                where="kv-cache",
                layer=layer,
                tensor=tensor,
                block=slot // kv.block_size,
                slot=slot % kv.block_size,
                position=position if position >= 0 else None,
                written_by_step=step if step >= 0 else None,
            )
    return NonFinitePlace(where="logits")


def _slots_in_use(kv: KVStore, requests: Sequence[Request]) -> NDArray[np.int64]:
    """Flat slots in ascending order, which is the order of physical block and slot."""
    ids = {request.id for request in requests}
    parts = [kv.slots_of(request.blocks, 0, request.num_computed) for request in requests]
    parts.append(np.array([slot for slot in kv.just_written.tolist() if kv.owner[slot] in ids], dtype=np.int64))
    return np.unique(np.concatenate(parts))
