"""Finds an attention backend on CUDA that gives a row the same bits in every batch.

The tiles are those of the CPU. What differs is that torch chooses among several kernels for a call: one of them is
pinned, and proven. Not run on a GPU yet, see `replay.engine.device`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from replay.engine.attention import TileSizes
from replay.engine.device import BACKENDS, Settings
from replay.engine.probe import AttentionShape, NoExactKernel, fitting_attention, fixed_attention
from replay.engine.probe_attention import holds


def choose_backend(
    shape: AttentionShape, settings: Settings, *, rows: int, max_keys: int, device: torch.device | str
) -> tuple[Settings, TileSizes]:
    """Tile sizes, and `settings` with the backend they hold for: the first whose tiles may share a call.

    Where none is, each tile gets a call of its own over `max_keys` keys. Then all calls have one shape, which takes one
    kernel. Raises `NoExactKernel` when no backend computes the shape.
    """
    able: list[Settings] = []
    for name in BACKENDS:
        chosen = replace(settings, attention=name)
        try:
            with chosen.applied():
                sizes = fitting_attention(shape, rows=rows, device=device)
                if sizes is not None and holds(shape, sizes, device):
                    return chosen, sizes
        except RuntimeError:  # torch's answer where a backend does not take the shape, the dtype or the device
            continue
        able.append(chosen)
    if not able:
        raise NoExactKernel(f"no attention backend computes heads of {shape.head_dim} in {shape.dtype} on {device}")
    return able[0], fixed_attention(shape, rows=rows, max_keys=max_keys, alone=True)
