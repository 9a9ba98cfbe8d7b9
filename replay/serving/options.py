"""How a server is started, checked once and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from replay.engine.defects import NO_DEFECTS, Defects
from replay.engine.schedule import EngineConfig, OnExhausted
from replay.errors import UsageError

DEFAULT_KV_BLOCKS = 512
QUEUE_FACTOR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """``max_model_len`` 0 means what the model can do; ``threads`` 0 means what torch finds; ``device`` "auto" means
    CUDA where that is usable. ``ring_bytes`` is the size of the history of steps; ``record`` and ``record_kv`` are
    values of `RecordLevel` and `RecordKv`."""

    model: str
    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_blocks: int = DEFAULT_KV_BLOCKS
    block_size: int = 16
    max_model_len: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    on_kv_exhausted: OnExhausted = OnExhausted.PREEMPT
    kv_quant_bits: Literal[0, 8] = 0
    prefix_cache: bool = False
    request_timeout_s: float = 600.0
    threads: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dump_dir: Path
    record: str = "shape"
    record_kv: str = "faulty"
    ring_bytes: int = 2 * 2**20
    dumps_per_minute: int = 10
    quirks: tuple[str, ...] = ()
    checks: bool = False
    debug_level: int = 0
    launch_arguments: tuple[str, ...] = ()

    @property
    def capacity(self) -> int:
        """Sequences that may be in flight, queued ones counted: each has a slot in the recorder."""
        return QUEUE_FACTOR * self.max_num_seqs

    def engine_config(self, max_position_embeddings: int, *, defects: Defects = NO_DEFECTS) -> EngineConfig:
        """Sizes of the engine. The defect ``positions_unchecked`` takes any ``max_model_len``.

        Raises:
            UsageError: more positions are asked for than the model has.
        """
        if self.max_model_len > max_position_embeddings and not defects.positions_unchecked:
            raise UsageError(
                f"--max-model-len {self.max_model_len} is more than the model's {max_position_embeddings} positions",
                remedy=f"Choose {max_position_embeddings} or less.",
            )
        return EngineConfig(
            num_blocks=self.kv_blocks,
            max_model_len=self.max_model_len or max_position_embeddings,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            on_kv_exhausted=self.on_kv_exhausted,
            kv_quant_bits=self.kv_quant_bits,
            prefix_cache=self.prefix_cache,
        )
