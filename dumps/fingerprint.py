"""What of a machine can change the bits of a result, as sorted pairs, and one hash over them.

Two runs with the same fingerprint may be compared bit for bit. The base pairs need no numeric library; an engine adds
its own: versions, thread counts, kernels, the caps of the instruction set that its libraries chose.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

# Instruction sets for which CPU kernels have separate code paths, and so separate orders of summation.
_ISA_FLAGS = frozenset(
    {"sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"}
    | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
    | {"amx_tile", "amx_bf16", "amx_int8"}
    | {"asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2"}
)
_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")


def platform_pairs(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The base pairs and ``extra``, by sorted key. A key of ``extra`` takes the place of a base pair."""
    model, flags = _cpu()
    pairs = {
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "byteorder": sys.byteorder,
        "libc": " ".join(platform.libc_ver()).strip(),
        "cpu.model": model,
        "cpu.isa": " ".join(sorted(flags & _ISA_FLAGS)),
        **{f"env.{name}": os.environ.get(name, "") for name in _VARIABLES},
        **(extra or {}),
    }
    return {key: pairs[key] for key in sorted(pairs)}


def fingerprint(pairs: Mapping[str, str]) -> str:
    """sha256 in hex over the pairs, sorted by key. Lengths are hashed too, so no two sets of pairs run together."""
    digest = hashlib.sha256()
    for key in sorted(pairs):
        for text in (key, pairs[key]):
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _cpu() -> tuple[str, frozenset[str]]:
    """Model name and feature flags of the first processor; what the system does not say is empty."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor(), frozenset()
    facts: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip().lower(), value.strip())
    model = facts.get("model name") or facts.get("cpu part", "")
    return model, frozenset((facts.get("flags") or facts.get("features", "")).split())
