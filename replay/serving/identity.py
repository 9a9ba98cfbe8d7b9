"""Who recorded: the facts about process, model and engine that every dump of this server carries."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dumps.fingerprint import fingerprint, platform_pairs
from replay.engine.kv_store import KVStore
from replay.engine.quirks import Quirk
from replay.engine.schedule import EngineConfig
from replay.engine.weights import LoadedModel
from replay.models.fingerprint import tokenizer_fingerprint, weights_fingerprint
from replay.serving.arguments import recordable
from replay.serving.options import ServerOptions

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "protobuf", "aiohttp")


def identity(
    options: ServerOptions,
    *,
    name: str,
    folder: Path,
    model: LoadedModel,
    kv: KVStore,
    config: EngineConfig,
    quirks: Sequence[Quirk],
) -> dict[str, Any]:
    """The recorder's ``identity``, with the field names of state.proto. Hashes every weight, once per folder."""
    pairs = platform_pairs(model.numerics)
    return {
        "active_model": name,
        "manifest": {
            "tool_version": _version("pplx-replay"),
            "debug_level": options.debug_level,
            "pid": os.getpid(),
            "hostname_hash": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:16],
            "versions": _pairs({"python": platform.python_version(), **{p: _version(p) for p in _PACKAGES}}),
            "platform": _pairs(pairs),
            "platform_fingerprint": fingerprint(pairs),
            "launch_arguments": recordable(options.launch_arguments),
        },
        "model": {
            "name": name,
            "architecture": model.architecture,
            "weights_fingerprint": weights_fingerprint(folder),
            "tokenizer_fingerprint": tokenizer_fingerprint(folder),
            "dtype": model.dtype,
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_position_embeddings,
            "num_layers": model.num_layers,
            "num_kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "eos_token_ids": list(model.eos_token_ids),
            "attention_backend": model.kernels,
        },
        "engine": {
            "engine": "pplx",
            "block_size": config.block_size,
            "num_blocks": config.num_blocks,
            "max_model_len": config.max_model_len,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "on_kv_exhausted": config.on_kv_exhausted.value,
            "kv_quant_bits": config.kv_quant_bits,
            "prefix_cache": config.prefix_cache,
            "checks": options.checks,
            "kernels": model.kernels,
            "num_threads": model.threads,
        },
        "kv": {
            "num_layers": kv.num_layers,
            "num_kv_heads": kv.num_kv_heads,
            "head_dim": kv.head_dim,
            "dtype": kv.dtype,
            "quant_bits": kv.quant_bits,
            "bytes_per_block": kv.bytes_per_block,
        },
        "quirks": [{"name": quirk.name, "detail": quirk.detail} for quirk in quirks],
    }


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": values[key]} for key in sorted(values)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
