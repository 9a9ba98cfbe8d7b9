"""A seccomp filter without network and without new processes, assembled here: seccomp(2), bpf(4) classic BPF.

It needs no privilege and no library. No signal goes to another process, and no file gets other permissions, owners or
times. Threads still start (clone with CLONE_THREAD), and a socket can still be made, so that the audit hook gets to see
and name what was tried with it; it just cannot be connected, bound or sent from.

For a GPU's driver (replay.isolate.driver) there is a second form, in which sockets can be bound and listen, and only
Unix sockets can be made.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from dataclasses import dataclass

from replay.errors import ReplayError


class FilterUnavailable(ReplayError):
    """No filter on this system. Usually not Linux, a kernel without seccomp, or a machine type without a table."""


# Numbers on x86_64 and aarch64; None where that machine type does not have the call.
_Numbers = tuple[int | None, int | None]

_NETWORK: dict[str, _Numbers] = {
    "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "sendmsg": (46, 211), "sendmmsg": (307, 269),
}  # fmt: skip
_SERVING: dict[str, _Numbers] = {"bind": (49, 200), "listen": (50, 201)}
_PROCESSES: dict[str, _Numbers] = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    # into other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "tkill": (200, 130), "process_madvise": (440, 440), "kcmp": (312, 272),
    # does any other call, unseen
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}  # fmt: skip
# What only an administrator may do, for a replay that one runs; and new namespaces, in which everybody may do it.
_SYSTEM: dict[str, _Numbers] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "unshare": (272, 97), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
# Landlock does not look at these, and they change files that cannot be opened for writing.
_FILE_FACTS: dict[str, _Numbers] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """System call numbers of one machine type; ``audit_arch`` is AUDIT_ARCH_* of linux/audit.h.

    ``denied`` are those refused always, ``serving`` and ``file_facts`` unless a GPU's driver is at work. The calls of
    ``own_process`` take a process first, which may be this one only; ``signals_by_files`` are pairs of a call and those
    of its commands (second argument) that have the system send signals for a file.
    """

    audit_arch: int
    denied: tuple[int, ...]
    serving: tuple[int, ...]
    file_facts: tuple[int, ...]
    own_process: tuple[int, ...]
    signals_by_files: tuple[tuple[int, tuple[int, ...]], ...]
    prlimit: int
    socket: int
    sendto: int
    clone: int
    clone3: int


def _of(column: int, *tables: dict[str, _Numbers]) -> tuple[int, ...]:
    return tuple(number for table in tables for pair in table.values() if (number := pair[column]) is not None)


_SET_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX of fcntl
_SOCKET_OWNER = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP of ioctl

_MACHINES = {
    "x86_64": Machine(
        audit_arch=0xC000003E,
        denied=_of(0, _NETWORK, _PROCESSES, _SYSTEM),
        serving=_of(0, _SERVING),
        file_facts=_of(0, _FILE_FACTS),
        own_process=(62, 234, 129, 297),  # kill tgkill rt_sigqueueinfo rt_tgsigqueueinfo
        signals_by_files=((72, _SET_OWNER), (16, _SOCKET_OWNER)),
        prlimit=302,
        socket=41,
        sendto=44,
        clone=56,
        clone3=435,
    ),
    "aarch64": Machine(
        audit_arch=0xC00000B7,
        denied=_of(1, _NETWORK, _PROCESSES, _SYSTEM),
        serving=_of(1, _SERVING),
        file_facts=_of(1, _FILE_FACTS),
        own_process=(129, 131, 138, 240),
        signals_by_files=((25, _SET_OWNER), (29, _SOCKET_OWNER)),
        prlimit=261,
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


def program(machine: Machine, *, process: int, driver: bool = False) -> list[Instruction]:
    """The filter as instructions. A rule is a block that returns, or falls through with the number still loaded.

    ``process`` is the id of the one it is for, ``driver`` the form for a GPU's driver.
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
    for number in (*machine.denied, *(() if driver else (*machine.serving, *machine.file_facts))):
        code += [(_JEQ, 0, 1, number), refuse]
    for number in machine.own_process:
        code += [(_JEQ, 0, 4, number), (_LOAD, 0, 0, _low(0)), (_JEQ, 0, 1, process), allow, refuse]
    # Limits of another process; 0 is this one.
    code += [(_JEQ, 0, 5, machine.prlimit), (_LOAD, 0, 0, _low(0))]
    code += [(_JEQ, 1, 0, 0), (_JEQ, 0, 1, process), allow, refuse]
    for number, commands in machine.signals_by_files:
        last = len(commands)
        code += [(_JEQ, 0, last + 3, number), (_LOAD, 0, 0, _low(1))]
        code += [(_JEQ, last - i, 0, command) for i, command in enumerate(commands)]
        code += [allow, refuse]
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
    code = program(machine, process=os.getpid(), driver=driver)
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
