"""The environment variables of a worker. What is not named here does not get in.

Tokens, proxies and preload libraries of the person's shell are no business of a process that opens untrusted files,
and a replay must not depend on them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from replay.runtime.variables import may_be_set

_KEPT = frozenset(
    {
        "HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV",
        "XDG_CACHE_HOME", "XDG_DATA_HOME",
        "HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE",  # where weights lie
        "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ATEN_CPU_CAPABILITY", "MKL_CBWR",
        "ONEDNN_MAX_CPU_ISA",
    }
)  # fmt: skip
_KEPT_PREFIXES = ("LC_", "PPLX_", "CUDA_", "NVIDIA_", "CUBLAS_")
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "KEY")

_SET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Idle OpenMP threads that spin take the core from the process that reads our progress.
    "OMP_WAIT_POLICY": "passive",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of ``environ`` that a worker gets, with the settings every replay runs under.

    The folder this package was imported from leads PYTHONPATH: a source tree works uninstalled, and the worker runs
    the supervisor's own version.
    """
    kept = {name: value for name, value in environ.items() if _is_kept(name)}
    here = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(part for part in (here, kept.get("PYTHONPATH", "")) if part)
    return {**kept, **_SET}


MAX_BYTES = 512 << 10
"""Of all variables that a dump may add."""
_MAX_ONE = 100_000  # bytes of one; Linux refuses 128 KiB
_OVERHEAD = 10  # its "=", the byte that ends it, and the pointer to it


def added(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of ``variables`` that may be put on top of a worker's own.

    They come out of a dump, which may neither have code loaded nor take a guard off. Of Python's, the hash seed is let
    in, and only a number. Together they take MAX_BYTES at most, the small ones first: the system starts no process with
    much more.
    """
    allowed = {name: value for name, value in variables.items() if _may_be_added(name, value)}
    sizes = {name: len(os.fsencode(name)) + len(os.fsencode(value)) + _OVERHEAD for name, value in allowed.items()}
    left, kept = MAX_BYTES, set()
    for name in sorted(sizes, key=lambda one: (sizes[one], one)):
        if sizes[name] > min(left, _MAX_ONE):
            break
        left -= sizes[name]
        kept.add(name)
    return {name: value for name, value in allowed.items() if name in kept}


def _may_be_added(name: str, value: str) -> bool:
    if name == "PYTHONHASHSEED":
        return value.isascii() and value.isdigit() and int(value[:20]) < 1 << 32
    return may_be_set(name, value)


def _is_kept(name: str) -> bool:
    if name in _KEPT:
        return True
    return name.startswith(_KEPT_PREFIXES) and not any(word in name for word in _SECRET_WORDS)
