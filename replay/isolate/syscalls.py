"""A seccomp filter without network and without new processes, assembled here: seccomp(2), bpf(4) classic BPF.

It needs no privilege and no library. Threads still start (clone with CLONE_THREAD), and a socket can still be made, so
that the audit hook gets to see and name what was tried with it; it just cannot be connected, bound or sent from.

For a GPU's driver (replay.isolate.driver) there is a second form, in which sockets can be bound and listen, and only
Unix sockets can be made.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
from dataclasses import dataclass

from replay.errors import ReplayError


class FilterUnavailable(ReplayError):
    """No filter on this system. Usually not Linux, a kernel without seccomp, or a machine type without a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """System call numbers of one machine type; ``audit_arch`` is AUDIT_ARCH_* of linux/audit.h. ``serving`` are bind
    and listen."""

    audit_arch: int
    denied: tuple[int, ...]
    serving: tuple[int, int]
    socket: int
    sendto: int
    clone: int
    clone3: int


_MACHINES = {
    "x86_64": Machine(
        audit_arch=0xC000003E,
        # connect accept accept4 sendmsg sendmmsg, execve execveat fork vfork,
        # ptrace process_vm_readv process_vm_writev pidfd_getfd (other processes), io_uring_setup (any of these, unseen)
        denied=(42, 43, 288, 46, 307, 59, 322, 57, 58, 101, 310, 311, 438, 425),
        serving=(49, 50),
        socket=41,
        sendto=44,
        clone=56,
        clone3=435,
    ),
    "aarch64": Machine(
        audit_arch=0xC00000B7,
        # the same, without fork and vfork, which this machine type does not have
        denied=(203, 202, 242, 211, 269, 221, 281, 117, 270, 271, 438, 425),
        serving=(200, 201),
        socket=198,
        sendto=206,
        clone=220,
        clone3=435,
    ),
}

# Offsets in struct seccomp_data (little endian).
_NUMBER, _ARCH = 0, 4
_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_X32_BIT = 0x40000000
_CLONE_THREAD = 0x00010000
_LOCAL_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: harmless while unconnected, unlike netlink and packet
_DRIVER_FAMILIES = (1,)

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def program(machine: Machine, *, driver: bool = False) -> list[Instruction]:
    """The filter as instructions. A rule is a block that returns, or falls through with the number still loaded.

    ``driver`` is the form for a GPU's driver.
    """
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JEQ, 1, 0, machine.audit_arch),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        (_JGE, 0, 1, _X32_BIT),
        refuse,
    ]
    for number in (*machine.denied, *(() if driver else machine.serving)):
        code += [(_JEQ, 0, 1, number), refuse]
    # glibc falls back to clone, whose flags can be read; those of clone3 are behind a pointer.
    code += [(_JEQ, 0, 1, machine.clone3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += [(_JEQ, 0, 4, machine.clone), (_LOAD, 0, 0, _low(0)), (_JSET, 0, 1, _CLONE_THREAD), allow, refuse]
    allowed = _DRIVER_FAMILIES if driver else _LOCAL_FAMILIES
    families = len(allowed)
    code += [(_JEQ, 0, families + 3, machine.socket), (_LOAD, 0, 0, _low(0))]
    code += [(_JEQ, families - i, 0, family) for i, family in enumerate(allowed)]
    code += [refuse, allow]
    # sendto without an address is send(), which works on a connected socket only, such as a socket pair.
    code += [
        (_JEQ, 0, 6, machine.sendto),
        (_LOAD, 0, 0, _low(4)),
        (_JEQ, 0, 3, 0),
        (_LOAD, 0, 0, _low(4) + 4),
        (_JEQ, 0, 1, 0),
        allow,
        refuse,
    ]
    return [*code, allow]


def install_filter(*, driver: bool = False) -> None:
    """Put the filter in force for this thread and those it starts, for good. Raises FilterUnavailable.

    ``driver`` as in `program`.
    """
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or sys.byteorder != "little" or machine is None:
        raise FilterUnavailable(f"no system call table for {sys.platform} on {platform.machine()}")
    code = program(machine, driver=driver)
    instructions = (_SockFilter * len(code))(*(_SockFilter(*instruction) for instruction in code))
    wanted = _SockFprog(len(code), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_no_new_privs, pr_set_seccomp, seccomp_mode_filter = 38, 22, 2
    zero, one = ctypes.c_ulong(0), ctypes.c_ulong(1)  # the kernel checks all 64 bits
    if libc.prctl(pr_set_no_new_privs, one, zero, zero, zero) != 0:
        raise FilterUnavailable(f"no_new_privs: {errno.errorcode.get(ctypes.get_errno(), 'unknown error')}")
    if libc.prctl(pr_set_seccomp, ctypes.c_ulong(seccomp_mode_filter), ctypes.byref(wanted), zero, zero) != 0:
        raise FilterUnavailable(f"seccomp: {errno.errorcode.get(ctypes.get_errno(), 'unknown error')}")


def _low(argument: int) -> int:
    """Offset of the low word of a system call's argument."""
    return 16 + 8 * argument


class _SockFilter(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_SockFilter)))
