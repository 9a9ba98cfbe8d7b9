"""Landlock: the kernel's own rule on which files this process may open, spoken to by system calls.

It needs no privilege. What is open already stays open, and what is not named is refused with EACCES, to native code
too. Newer kernels add refusals that the older ones cannot make; the ABI number in the report says which.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import stat
import sys
from collections.abc import Iterable

from replay.errors import ReplayError
from replay.isolate.access import Access

# System calls; the same number on every machine type.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = (1 << bit for bit in range(6, 13))
_REFER, _TRUNCATE, _IOCTL_DEV = (1 << bit for bit in range(13, 16))
_ALL = (1 << 13) - 1
_SINCE = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV  # what a rule on a file may hold

_READ = _READ_FILE | _READ_DIR
# No device nodes and no sockets, and nothing can be executed anywhere.
_WRITE = (
    _READ
    | _WRITE_FILE
    | _REMOVE_DIR
    | _REMOVE_FILE
    | _MAKE_DIR
    | _MAKE_REG
    | _MAKE_FIFO
    | _MAKE_SYM
    | _REFER
    | _TRUNCATE
)
_DEVICE = _READ | _WRITE_FILE | _MAKE_REG | _REMOVE_FILE | _TRUNCATE | _IOCTL_DEV

_MOST_FILES = 1024
_KEPT_FILES = 64

NETWORK_ABI = 4
_BIND_AND_CONNECT = 0b11
SIGNALS_ABI = 6
_SOCKETS_AND_SIGNALS = 0b11


class LandlockUnavailable(ReplayError):
    """No Landlock here. Usually not Linux, a kernel before 5.13, or one that was started without it."""


def restrict(access: Access) -> int:
    """Let this thread, and those it starts, touch nothing but ``access``, for good. Returns the ABI in force.

    Where the kernel can, no TCP port can be bound or connected either, and no process outside gets a signal from here.
    Raises LandlockUnavailable, with nothing in force.
    """
    if sys.platform != "linux":
        raise LandlockUnavailable(f"{sys.platform} has none")
    libc = ctypes.CDLL(None, use_errno=True)
    abi = _call(libc, _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    handled = _ALL
    for since, right in _SINCE.items():
        handled |= right if abi >= since else 0
    wanted = _Ruleset(
        handled, _BIND_AND_CONNECT if abi >= NETWORK_ABI else 0, _SOCKETS_AND_SIGNALS if abi >= SIGNALS_ABI else 0
    )
    ruleset = _call(libc, _CREATE_RULESET, ctypes.byref(wanted), ctypes.c_size_t(_size(abi)), ctypes.c_uint32(0))
    try:
        for paths, rights in ((access.read, _READ), (access.write, _WRITE), (access.devices, _DEVICE)):
            _allow(libc, ruleset, paths, rights & handled)
        zero, one = ctypes.c_ulong(0), ctypes.c_ulong(1)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) != 0:
            raise LandlockUnavailable(f"no_new_privs: {errno.errorcode.get(ctypes.get_errno(), 'unknown error')}")
        _call(libc, _RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return abi


def _allow(libc: ctypes.CDLL, ruleset: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # gone since, or in a folder that is closed to us: then it cannot be read anyway
            continue
        try:
            folder = stat.S_ISDIR(os.fstat(fd).st_mode)
            rule = _PathBeneath(rights if folder else rights & _OF_FILES, fd)
            _call(
                libc,
                _ADD_RULE,
                ctypes.c_int(ruleset),
                ctypes.c_int(_PATH_BENEATH),
                ctypes.byref(rule),
                ctypes.c_uint32(0),
            )
            if path.startswith("/proc/"):
                _keep(fd)
        finally:
            os.close(fd)


def _keep(fd: int) -> None:
    """Hold a file of /proc for the life of this process. The rule is on the system's own object for it, which it would
    forget when memory is short, and make another that no rule knows. Numbered high, out of a program's sight."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(3, min(soft, _MOST_FILES) - _KEPT_FILES))


def _call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    result: int = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        name = errno.errorcode.get(ctypes.get_errno(), "unknown error")
        raise LandlockUnavailable(f"this kernel has none ({name})" if name in ("ENOSYS", "EOPNOTSUPP") else name)
    return result


def _size(abi: int) -> int:
    """Of the structure as that kernel knows it; a longer one is refused by the older ones only where it is not zero."""
    return ctypes.sizeof(_Ruleset) if abi >= SIGNALS_ABI else 16 if abi >= NETWORK_ABI else 8


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("rights", ctypes.c_uint64), ("fd", ctypes.c_int32))
