"""Where a process stands, told by itself on a signal: the Python stacks of its threads, written by faulthandler."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys

from dumps.record.stacks import is_in_app

STACK_SIGNAL: int = signal.SIGRTMIN + 6 if sys.platform == "linux" else signal.SIGUSR1
"""One that programs and profilers leave alone."""

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')

MAX_FRAMES = 24  # of each thread, from the innermost


def tell_on_signal(fd: int) -> None:
    """From now on write the stacks to ``fd`` whenever STACK_SIGNAL comes, even from within native code."""
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)


def shortened(text: str) -> str:
    """What faulthandler wrote, with the outer frames of deep stacks left out. The main thread stands last."""
    lines: list[str] = []
    frames = 0
    for line in text.splitlines():
        frames = frames + 1 if line.startswith("  ") else 0
        if frames <= MAX_FRAMES:
            lines.append(line)
        elif frames == MAX_FRAMES + 1:
            lines.append("  ...")
    return "\n".join(line for line in lines if line.strip())


def first_app_place(text: str) -> str:
    """The program's own innermost frame in what faulthandler wrote, as "spin.py:4 main"; empty where there is none.

    Of the main thread, which stands last, before that of any other.
    """
    place = ""
    innermost = True
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is None:
            innermost = True  # another thread begins
        elif innermost and is_in_app(frame["file"]):
            place = f"{os.path.basename(frame['file'])}:{frame['line']} {frame['function']}"
            innermost = False
    return place
