"""A model in memory: what the engine asks it for, and what was found out about it while it was loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from replay.engine.attention import Placed, TileSizes, Window
from replay.engine.device import Settings
from replay.engine.kv_store import KVStore

Kernels = Literal["exact", "stock"]


class Shared(Protocol):
    """Computes for several users of one model, see `replay.engine.runner.forward` and ``head``."""

    def forward(self, placed: Sequence[Placed]) -> torch.Tensor: ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run, with what its probe found. ``head`` maps hidden states to logits, in whole row tiles.

    ``windows`` are the distinct attention windows of its layers. ``learned_positions`` says that positions come from a
    table of ``max_position_embeddings`` rows; rotary ones can be computed beyond that number, to no good. ``untested``
    says why no bits are promised for it, and is empty when they are. ``settings`` are to be in force while it computes.
    ``numerics`` holds everything here that can change bits, as strings: it goes into the platform fingerprint.
    ``shared`` computes in the model's place where several replays run on it at once; None: whoever has the model runs
    it.
    """

    model: Any
    head: Any
    architecture: str
    vocab_size: int
    max_position_embeddings: int
    learned_positions: bool
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    windows: tuple[Window, ...]
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str
    kernels: Kernels
    untested: str
    sizes: TileSizes
    settings: Settings
    threads: int
    numerics: dict[str, str]
    shared: Shared | None = None

    def kv_store(self, *, num_blocks: int, block_size: int, quant_bits: int = 0, measure: bool = False) -> KVStore:
        """An empty cache of the model's shape. ``quant_bits`` and ``measure`` as in `KVStore`."""
        return KVStore(
            num_blocks=num_blocks,
            block_size=block_size,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
            quant_bits=quant_bits,
            measure=measure,
        )
