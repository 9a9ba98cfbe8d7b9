"""What stands behind a program's standard input. What is read from it is not recorded."""

from __future__ import annotations

import os
import stat
from typing import Final

TERMINAL: Final = "terminal"
NULL: Final = "null"
"""/dev/null: there is nothing to read."""


def kind() -> str:
    """TERMINAL, NULL, "file", "pipe", or "" where it is closed or something else."""
    try:
        status = os.fstat(0)
        if os.isatty(0):
            return TERMINAL
        if stat.S_ISCHR(status.st_mode):
            return NULL if status.st_rdev == os.stat(os.devnull).st_rdev else ""
    except OSError:
        return ""
    return "file" if stat.S_ISREG(status.st_mode) else "pipe" if stat.S_ISFIFO(status.st_mode) else ""
