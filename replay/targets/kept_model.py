"""The last model that this process loaded, kept for the next replay that wants the same. Free of torch until one loads.

What replays share by it are weights, tokenizer and settings, which no replay changes; each has a KV cache of its own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from replay.targets.load import Loaded


class KeptModel:
    """One model is in memory at a time: what another key had goes before the next one is loaded."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._loaded: Loaded | None = None
        self._threads: int | None = None  # torch's own choice, for dumps that do not say how many they ran on

    @property
    def name(self) -> str:
        """A short text that differs where the key does; "" without a model."""
        return hashlib.sha256(repr(self._key).encode()).hexdigest()[:32] if self._key is not None else ""

    def load(
        self, folder: Path, *, dtype: str, kernels: Literal["exact", "stock"], device: str, threads: int
    ) -> Loaded:
        """As `replay.targets.load.load_weights`, or what is kept where weights, tokenizer and settings are the same."""
        import torch

        from replay.targets.batch_model import identity_of
        from replay.targets.load import load_weights

        if self._threads is None:
            self._threads = torch.get_num_threads()
        key = (identity_of(folder), dtype, kernels, device, threads)
        if key != self._key or self._loaded is None:
            self._key = self._loaded = None
            if not threads:
                torch.set_num_threads(self._threads)  # an earlier dump may have changed it
            self._loaded = load_weights(folder, dtype=dtype, kernels=kernels, device=device, threads=threads)
            self._key = key
        return self._loaded
