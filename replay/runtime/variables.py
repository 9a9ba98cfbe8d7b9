"""The environment variables of a recorded program, put in place of those of this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

MAX_VALUE = 32_768
"""Characters of a variable that a dump may set."""

# What decides how a process starts, which code it loads, and under which guard. Beside these, a variable is the
# program's own affair.
_STARTUP = frozenset({"BASH_ENV", "ENV", "GCONV_PATH", "HOME", "LOCPATH", "NLSPATH", "PATH", "TMPDIR", "HOSTALIASES"})
_STARTUP_PREFIXES = (
    "LD_", "DYLD_", "PYTHON", "PPLX_", "GLIBC_", "MALLOC_", "OPENSSL_", "SSL_", "SSLKEY", "OMP_", "MKL_", "KMP_",
    "GOMP_", "CUDA_", "NVIDIA_", "HF_", "TRANSFORMERS_", "TORCH", "XDG_",
)  # fmt: skip


def may_be_set(name: str, value: str) -> bool:
    """Whether a dump may set this variable: it may neither have code loaded nor take a guard off."""
    plain = bool(name) and not {"=", "\0"} & set(name) and "\0" not in value and len(value) <= MAX_VALUE
    return plain and not is_of_startup(name)


def is_of_startup(name: str) -> bool:
    return name in _STARTUP or name.startswith(_STARTUP_PREFIXES)


def put_in_place(recorded: Mapping[str, str], *, whole: bool = True) -> Callable[[], None]:
    """Give this process ``recorded`` variables and no others, but for those that decide how a process starts.

    Unless they are ``whole``, others stay.

    Returns the way back, which leaves alone what was set meanwhile and is none of them.
    """
    wanted = {name: value for name, value in recorded.items() if may_be_set(name, value)}
    others = (name for name in os.environ if name not in recorded and not is_of_startup(name))
    names = {*wanted, *(others if whole else ())}
    before = {name: os.environ.get(name) for name in names}
    _set({name: wanted.get(name) for name in names})
    return lambda: _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    zone = os.environ.get("TZ")
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        elif os.environ.get(name) != value:
            os.environ[name] = value
    if os.environ.get("TZ") != zone:
        time.tzset()
