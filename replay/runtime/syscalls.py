"""System calls by name: who answers one in a replay, and how a recorded one is answered.

    calls = Syscalls(dump.state.syscalls)
    calls.mock_syscall("read", lambda args, recorded: b"" if args[0] == "cache.json" else NotImplemented)

A handler is a plain function. It gets the call's arguments and the recorded call that would answer it (a `pb.Syscall`:
args, ret, data, errno_name), None where there is none. It returns the value, raises `OSError`, or returns
`NotImplemented` to leave it to the handler before it; the recording comes last. It runs in the recorded world as the
program does: a real file that it needs is read before. Anything else that it raises is `HandlerBroken`.

| name                   | args                    | what it may return                                           |
|------------------------|-------------------------|--------------------------------------------------------------|
| open                   | (path, flags)           | bytes or str: the file's whole content; it need not be known |
| read                   | (path, size, offset)    | the same, of a file whose open is answered                   |
| write                  | (path, size, offset)    | int: how many bytes were written; they are not kept          |
| stat, lstat, fstat     | (path,)                 | dict of st_mode, st_size, ..., or an `os.stat_result`        |
| statvfs                | (path,)                 | dict of f_bsize, f_bavail, ..., or an `os.statvfs_result`    |
| access                 | (path, mode)            | bool                                                         |
| listdir, scandir       | (path,)                 | list of names                                                |
| readlink               | (path,)                 | str or bytes                                                 |
| mkdir, truncate        | (path, mode or size)    | anything: the call worked and changed nothing                |
| unlink, rmdir          | (path,)                 | as mkdir                                                     |
| rename, link, symlink  | (source, target)        | as mkdir                                                     |
| chmod, chown, utime    | (path, ...)             | as mkdir                                                     |
| fsync                  | (path,)                 | as mkdir                                                     |

``path`` is as the program wrote it (a descriptor where it gave one), ``flags`` text such as "O_RDONLY|O_CLOEXEC".
What a read handler returns is the content of the file for as long as it stays open: reads are cut from it by size and
offset, and the handler is not asked again until the next open. What `os.stat` says of the file stays as recorded. A str
is encoded as UTF-8. `os.pread` asks "read", `os.remove` "unlink", `os.replace` "rename": one name for calls that do
the same. A non-blocking call that would have to wait raises `BlockingIOError`.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from dumps.record.seams.listing import unpack
from dumps.schema import state_pb2 as pb
from replay.runtime.errors import RuntimeReplayError

Handler = Callable[[tuple[Any, ...], pb.Syscall | None], Any]

_BYTES: Final = ((bytes, bytearray, memoryview, str), "bytes or str, the file's whole content")
_STATUS: Final = ((dict, os.stat_result), "a dict of st_mode, st_size, ..., or an os.stat_result")
_NAMES: Final = ((list, tuple, set), "a list of names")
_ANYTHING: Final = ((object,), "anything")
_RETURNS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "open": _BYTES,
    "read": _BYTES,
    "write": ((int,), "an int, how many bytes were written"),
    **dict.fromkeys(("stat", "lstat", "fstat"), _STATUS),
    "statvfs": ((dict, os.statvfs_result), "a dict of f_bsize, f_bavail, ..., or an os.statvfs_result"),
    "access": ((int,), "a bool"),
    **dict.fromkeys(("listdir", "scandir"), _NAMES),
    "readlink": ((str, bytes, os.PathLike), "a path, str or bytes"),
    **dict.fromkeys(("mkdir", "truncate", "unlink", "rmdir", "rename", "link", "symlink"), _ANYTHING),
    **dict.fromkeys(("chmod", "chown", "utime", "fsync"), _ANYTHING),
}
"""The calls that files are played with, and what their handlers may return."""

_ASKED_AS: Final = {
    "pread": "read",
    "pwrite": "write",
    "remove": "unlink",
    "replace": "rename",
    "ftruncate": "truncate",
    "fdatasync": "fsync",
    "fstatvfs": "statvfs",
}


class UnrecordedSyscall(RuntimeReplayError):
    """A system call that neither a handler nor the recording answers."""

    exit_code = 12
    remedy = "Answer it with env.mock_syscall(NAME, handler)."


class UnknownSyscall(RuntimeReplayError):
    """A handler was given for a call that nothing asks for: it would never be called. Usually a typo."""

    exit_code = 2


class WrongAnswer(RuntimeReplayError):
    """A handler returned what its call cannot give. Usually None: a branch without ``return NotImplemented``."""

    exit_code = 2
    remedy = "To leave a call to the recording, return NotImplemented; to let it fail, raise OSError."


class HandlerBroken(RuntimeReplayError):
    """A handler raised what no system call raises: its own bug, and not the program's failure."""

    exit_code = 2
    remedy = (
        "Mend the handler; to let the call fail, raise OSError. A handler runs in the recorded world, too: files that "
        "it needs are read before."
    )


class DataLeftOut(RuntimeReplayError):
    """A recorded call is there, but not all of its data. Usually a recording below level "full"."""

    exit_code = 20
    remedy = 'Record at level "full", or answer the call with env.mock_syscall(NAME, handler).'


class Syscalls:
    """Handlers by name, over the calls of a recording."""

    def __init__(self, recorded: Iterable[pb.Syscall] = ()) -> None:
        self.refusals: list[RuntimeReplayError] = []  # what was raised for wrong answers, which a program may swallow
        self._handlers: dict[str, list[Handler]] = {}
        self._recorded: dict[tuple[str, str], deque[pb.Syscall]] = defaultdict(deque)
        for call in recorded:
            self._recorded[call.name, call.args[0] if call.args else ""].append(call)

    def mock_syscall(self, name: str, handler: Handler) -> Callable[[], None]:
        """Let ``handler`` answer ``name`` first of all. Returns the function that takes it away again.

        Raises `UnknownSyscall` for a name that neither a file of the replay nor the recording knows.
        """
        self._check(name)
        handlers = self._handlers.setdefault(name, [])
        handlers.append(handler)

        def undo() -> None:
            if handler in handlers:
                handlers.remove(handler)

        return undo

    def call(self, name: str, *args: Any) -> Any:
        """What the call gives: by a handler, else the next recorded one of this name and first argument.

        Raises `OSError` as recorded, `UnrecordedSyscall`, `DataLeftOut`.
        """
        queue = self._recorded.get((name, str(args[0]) if args else ""))
        recorded = queue[0] if queue else None

        def scripted() -> Any:
            if queue is None or recorded is None:
                raise UnrecordedSyscall(f"{name}({', '.join(map(repr, args))}) was not recorded, or not so often")
            queue.popleft()
            return answer(recorded)

        return self.ask(name, args, recorded, scripted)

    def ask(self, name: str, args: tuple[Any, ...], recorded: pb.Syscall | None, default: Callable[[], Any]) -> Any:
        """The answer of the newest handler that has one, else of ``default``. For those who play a kind of call."""
        result = self.handled(name, args, recorded)
        return default() if result is NotImplemented else result

    def handled(self, name: str, args: tuple[Any, ...], recorded: pb.Syscall | None) -> Any:
        """The answer of the newest handler that has one, else `NotImplemented`. Raises `WrongAnswer`."""
        for handler in reversed(tuple(self._handlers.get(name, ()))):
            result = self._ask_one(handler, name, args, recorded)
            if result is not NotImplemented:
                types, wanted = _RETURNS.get(name, _ANYTHING)
                if not isinstance(result, types):
                    shown = f"{name}({', '.join(map(repr, args))})"
                    error = WrongAnswer(f"a handler returned {type(result).__name__} for {shown}; wanted: {wanted}")
                    self.refusals.append(error)
                    raise error
                return result
        return NotImplemented

    def _ask_one(self, handler: Handler, name: str, args: tuple[Any, ...], recorded: pb.Syscall | None) -> Any:
        try:
            return handler(args, recorded)
        except (OSError, RuntimeReplayError):
            raise
        except Exception as bug:
            asked = f"{name}({', '.join(map(repr, args))})"
            where = getattr(handler, "__qualname__", type(handler).__name__)
            error = HandlerBroken(f"the handler {where} of {asked} failed: {type(bug).__name__}: {bug}")
            self.refusals.append(error)
            raise error from bug

    def _check(self, name: str) -> None:
        recorded = {one for one, _ in self._recorded}
        if name in _RETURNS or (name in recorded and name not in _ASKED_AS):
            return
        known = sorted(recorded.union(_RETURNS).difference(_ASKED_AS))
        near = [_ASKED_AS[name]] if name in _ASKED_AS else difflib.get_close_matches(name, known, 3)
        raise UnknownSyscall(
            f"no call is named {name!r}: its handler would never be asked. "
            f"{'Nearest' if near else 'There are'}: {', '.join(near or known)}",
            remedy="Give the handler one of these names.",
        )


def content_of(result: Any) -> bytes:
    """What a handler of "open" or "read" returned, as bytes."""
    return result.encode() if isinstance(result, str) else bytes(result)


def answer(call: pb.Syscall) -> Any:
    """What a recorded call gave: bytes of a read, names of a listing, an `os.stat_result`, else a number or None.

    Raises the recorded `OSError`, and `DataLeftOut` where the data is not all there.
    """
    raise_error(call)
    if call.name in ("read", "pread", "recv", "readlink", "listdir", "scandir"):
        data = whole_data(call)
        if call.name in ("listdir", "scandir"):
            return [name for _, name in unpack(data)]
        return os.fsdecode(data) if call.name == "readlink" else data
    if call.name in ("stat", "lstat", "fstat"):
        return status(call)
    try:
        return int(call.ret, 0)
    except ValueError:
        return None


def raise_error(call: pb.Syscall, *paths: Any) -> None:
    """Raise the recorded error, if there is one. ``paths``: what the program called the file or files."""
    if not call.errno_name:
        return
    number = getattr(errno, call.errno_name, None) if call.errno_name.startswith("E") else None
    if isinstance(number, int):
        raise os_error(number, *paths)
    raise OSError(errno.EIO, f"{call.errno_name}, as recorded; this system has no such error", *paths[:1])


def os_error(number: int, *paths: Any) -> OSError:
    """The error as the system raises it. ``paths`` as in `raise_error`."""
    names: tuple[Any, ...] = (paths[0], None, paths[1]) if len(paths) == 2 else paths
    return OSError(number, os.strerror(number), *names)


def whole_data(call: pb.Syscall) -> bytes:
    """The data of a read or a listing. Raises `DataLeftOut`."""
    if call.data_partial:
        what = f"{call.name} of {call.args[0]}" if call.args else call.name
        raise DataLeftOut(f"The recorded {what} gave {call.ret}, of which the dump holds {len(call.data)} bytes.")
    return call.data


def status(call: pb.Syscall) -> os.stat_result:
    """A recorded status; fields that it does not hold are 0."""
    return make_status(fields_of(call))


def fields_of(call: pb.Syscall) -> dict[str, int]:
    """The numbers in a result such as "st_mode=33188 st_size=12"."""
    fields: dict[str, int] = {}
    for pair in call.ret.split():
        name, _, value = pair.partition("=")
        if value.lstrip("-").isdecimal():
            fields[name] = int(value)
    return fields


def make_status(fields: dict[str, int]) -> os.stat_result:
    """A status from its fields by name; times are "st_atime_ns" and so on."""
    times = [fields.get(f"st_{kind}time_ns", 0) for kind in "amc"]
    sequence = [
        fields.get(name, 0) for name in ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size")
    ]
    size = fields.get("st_size", 0)
    return os.stat_result(
        [*sequence, *(one // 1_000_000_000 for one in times)],
        {
            # Rounded as CPython rounds them: a program compares them with what it kept.
            **{
                f"st_{kind}time": one // 1_000_000_000 + 1e-9 * (one % 1_000_000_000)
                for kind, one in zip("amc", times, strict=True)
            },
            **{f"st_{kind}time_ns": one for kind, one in zip("amc", times, strict=True)},
            "st_blksize": 4096,
            "st_blocks": (size + 511) // 512,
            "st_rdev": 0,
        },
    )
