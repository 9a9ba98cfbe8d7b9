"""The environment variables of a worker. What is not named here does not get in.

Tokens, proxies and preload libraries of the person's shell are no business of a process that opens untrusted files,
and a replay must not depend on them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

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

# What decides how a process starts, which code it loads, and under which guard. Beside these, a variable is the
# program's own affair.
_STARTUP = frozenset({"BASH_ENV", "ENV", "GCONV_PATH", "HOME", "LOCPATH", "NLSPATH", "PATH", "TMPDIR", "HOSTALIASES"})
_STARTUP_PREFIXES = (
    "LD_", "DYLD_", "PYTHON", "PPLX_", "GLIBC_", "MALLOC_", "OPENSSL_", "SSL_", "SSLKEY", "OMP_", "MKL_", "KMP_",
    "GOMP_", "CUDA_", "NVIDIA_", "HF_", "TRANSFORMERS_", "TORCH", "XDG_",
)  # fmt: skip

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


MAX_VALUE = 32_768
"""Characters of a variable that a dump may add: the system starts no process with much more."""


def added(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of ``variables`` that may be put on top of a worker's own.

    They come out of a dump, which may neither have code loaded nor take a guard off. Of Python's, the hash seed is let
    in, and only a number.
    """
    return {name: value for name, value in variables.items() if _may_be_added(name, value)}


def _may_be_added(name: str, value: str) -> bool:
    if name == "PYTHONHASHSEED":
        return value.isascii() and value.isdigit() and int(value[:20]) < 1 << 32
    plain = bool(name) and not {"=", "\0"} & set(name) and "\0" not in value and len(value) <= MAX_VALUE
    return plain and name not in _STARTUP and not name.startswith(_STARTUP_PREFIXES)


def _is_kept(name: str) -> bool:
    if name in _KEPT:
        return True
    return name.startswith(_KEPT_PREFIXES) and not any(word in name for word in _SECRET_WORDS)
