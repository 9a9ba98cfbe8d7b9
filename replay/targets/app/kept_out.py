"""Errors by which the system keeps a replay out of something, and that no recording gave.

Landlock and the system call filter answer with EACCES and EPERM where native code asks. A program cannot tell them
from its own; they are not.
"""

from __future__ import annotations

import dis
import errno
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType

from dumps.record.seams.rebind import OURS
from dumps.record.stacks import capture_exception, top_in_app_frame
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.errors import ReplayError
from replay.targets.app.outcome import family

_DENIED = (errno.EACCES, errno.EPERM)
_RAISING = frozenset({"RAISE_VARARGS", "RERAISE"})


def kept_out(error: BaseException | None, recorded: Sequence[pb.ExceptionInfo]) -> str:
    """The first error in what ``error`` came from by which something is denied, in words; "" where there is none that
    is not among the ``recorded`` exceptions too, or played from the record.

    Whether the system denied it or code that asks it in a way of its own (ctypes) says so cannot be told.
    """
    known = {(one.type, top_in_app_frame(one)) for one in recorded}
    for one in family(error):
        if isinstance(one, ReplayError) or not (isinstance(one, OSError) and one.errno in _DENIED):
            continue
        if _is_played(one):
            continue
        raised = capture_exception(one)[-1]
        frame = top_in_app_frame(raised)
        if (raised.type, frame) not in known:
            return f"{raised.type}{f' in {frame}' if frame else ''} ({printable(raised.message, 200)})"
    return ""


def _is_played(error: OSError) -> bool:
    """Whether this project raised it itself: as it was recorded. What a real function raised to it is the system's."""
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] in OURS and trace.tb_lasti in _raises(trace.tb_frame.f_code)


@lru_cache(256)
def _raises(code: CodeType) -> frozenset[int]:
    """Where in ``code`` an exception is raised by itself."""
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname in _RAISING)
