"""SIGTERM and SIGHUP end a command as Ctrl-C does: its workers, their folders and what it wrote half go with it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import click

NUMBERS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C ended the command. ``exit_code`` is what a shell reports for it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@dataclass(slots=True)
class Ending:
    """``number`` is that of the signal that came, 0 for none."""

    number: int = 0

    def error(self, caught: BaseException) -> BaseException:
        """``caught``, or what it really was where a signal had the command interrupted."""
        interrupted = isinstance(caught, KeyboardInterrupt | click.Abort)
        return Terminated(self.number) if self.number and interrupted else caught


@contextlib.contextmanager
def like_ctrl_c() -> Iterator[Ending]:
    """Within the block these signals interrupt, unless somebody chose otherwise, as nohup does for SIGHUP."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        ending.number = ending.number or number
        # An event loop has put its own in place of Python's, and cancels its task there.
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # ignored, as for what a shell started in the background
            raise KeyboardInterrupt

    taken = [number for number in NUMBERS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield ending
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
