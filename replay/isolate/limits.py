"""What a job and its worker process may use, and how the worker's memory is measured from outside.

Memory is not limited by RLIMIT_AS: torch and CUDA reserve address space far above what they touch. A watchdog in the
supervisor measures what the worker really holds and kills it above the limit; the kernel is told to pick the worker
first if memory runs out before the watchdog looks.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

LOAD_TIMEOUT_S = 120.0
MAX_OPEN_FILES = 1024
OOM_SCORE = 800  # of 1000; the worker goes before its supervisor and before a browser
WATCH_INTERVAL_S = 0.05
MEMORY_SHARE = 0.75  # of the machine, when no limit is given

# Pages that cannot be dropped and read again. File-backed pages of a mapped dump or of weights can, so they are free.
_HELD = ("RssAnon:", "RssShmem:", "VmSwap:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one job may take. ``timeout_s`` counts from its first replayed step (None: no limit), ``load_timeout_s``
    until then. ``memory_bytes`` is memory that its worker alone holds; None takes a share of the machine."""

    load_timeout_s: float = LOAD_TIMEOUT_S
    timeout_s: float | None = None
    memory_bytes: int | None = None


DEFAULT_LIMITS = Limits()


def apply_limits() -> None:
    """Set the limits of this process: no core file (it would hold people's text), a bounded number of descriptors."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")


def die_with_parent(parent_pid: int) -> bool:
    """Ask the kernel to kill this process when its parent ends. False where the system cannot.

    Exits at once when the parent is gone already: the request covers only what happens after it.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    pr_set_pdeathsig = 1
    if ctypes.CDLL(None).prctl(pr_set_pdeathsig, ctypes.c_ulong(signal.SIGKILL)) != 0:
        return False
    if os.getppid() != parent_pid:
        os._exit(1)
    return True


def held_memory(pid: int) -> int | None:
    """Bytes of memory that only this process keeps alive. None when the system does not tell or the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    lines = [line.split() for line in status.splitlines() if line.startswith(_HELD)]
    return sum(int(fields[1]) * 1024 for fields in lines) if lines else None


def default_memory_limit() -> int:
    """Bytes: a share of physical memory, or of the control group's limit where that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(name).read_text(encoding="ascii")))
    return int(total * MEMORY_SHARE)
