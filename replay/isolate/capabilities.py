"""Gives up what a process may do beyond its user (Linux capabilities), so that root's replay is no more than a user's.

Some of them reach around the rules on files: one that may watch performance is let read the environment of any other
process. None comes back: nothing is executed any more, and the bounding set is empty.
"""

from __future__ import annotations

import ctypes
import errno
import sys

from replay.errors import ReplayError

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 23, 24, 47, 4
_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH = 2


class CapabilitiesKept(ReplayError):
    """The system let this process give up nothing. Usually a filter around it that refuses the calls."""


def give_up(*, keep_reading: bool) -> None:
    """Drop all capabilities of this thread, and of those it starts, for good. Raises CapabilitiesKept.

    ``keep_reading`` keeps that of reading the files of other users, for an administrator who replays their dumps. Only
    where something else says which files those may be. Call it before any other thread is started.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    number = 0
    # Without privilege nothing can be dropped from the bounding set, nor used from it.
    while libc.prctl(_PR_CAPBSET_READ, ctypes.c_ulong(number), zero, zero, zero) >= 0:
        libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), zero, zero, zero)
        number += 1
    libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), zero, zero, zero)
    header, held, kept = _Header(_VERSION_3, 0), (_Sets * 2)(), (_Sets * 2)()
    if libc.capget(ctypes.byref(header), held) != 0:
        raise CapabilitiesKept(_reason())
    if keep_reading:
        kept[0].permitted = held[0].permitted & (1 << _CAP_DAC_READ_SEARCH)
        kept[0].effective = held[0].effective & (1 << _CAP_DAC_READ_SEARCH)
    if libc.capset(ctypes.byref(header), kept) != 0:
        raise CapabilitiesKept(_reason())


def _reason() -> str:
    return f"the system does not let them be given up ({errno.errorcode.get(ctypes.get_errno(), 'unknown error')})"


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))
