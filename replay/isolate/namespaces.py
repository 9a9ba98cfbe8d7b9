"""A network of its own for this process: one without any interface that is up, so that nothing can leave by it.

With privilege a network namespace is enough; without, it takes a user namespace around it, in which this process keeps
its user and group ids.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

from replay.errors import ReplayError

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


class NamespaceUnavailable(ReplayError):
    """No namespace. Usually not Linux, or a system or container that keeps users from making them."""


def leave_network() -> None:
    """Put this process into an empty network, for good; loopback is down in it. Raises NamespaceUnavailable.

    Call it before any other thread is started: the system refuses it afterwards.
    """
    if sys.platform != "linux":
        raise NamespaceUnavailable(f"{sys.platform} has none")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        name = errno.errorcode.get(ctypes.get_errno(), "unknown error")
        raise NamespaceUnavailable(f"the system does not let this user make one ({name})")
    try:
        # Otherwise everybody, this user included, is "nobody" here. Groups can be mapped only once they are fixed.
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    except OSError:
        pass  # the namespace holds all the same; only names of users look odd
