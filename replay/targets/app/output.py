"""What a replayed program prints: passed on, and its end kept for the report."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TextIO

KEPT = 4000  # characters


class KeptOutput(io.TextIOBase):
    """A text stream that writes to ``beneath`` and remembers the end of what was written."""

    def __init__(self, beneath: TextIO) -> None:
        self._beneath = beneath
        self._end = ""

    def write(self, text: str) -> int:
        self._end = (self._end + text)[-KEPT:]
        return self._beneath.write(text)

    def flush(self) -> None:
        self._beneath.flush()

    def fileno(self) -> int:
        return self._beneath.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._beneath.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._beneath.errors

    @property
    def buffer(self) -> io.BufferedIOBase:
        """For programs that write bytes, which are passed on and not kept."""
        return self._beneath.buffer  # type: ignore[return-value]

    def tail(self) -> str:
        return self._end


@contextlib.contextmanager
def kept_output() -> Iterator[KeptOutput]:
    """Keep what is printed on stdout and stderr, by Python code, in the order in which it came."""
    output = KeptOutput(sys.stderr)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        yield output
