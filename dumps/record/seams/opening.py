"""A file object on top of a raw one of ours, as `open` would have built it on `io.FileIO`.

`io.open` always makes its own `FileIO`, and nothing can be put below a finished file object. So recording and replay
open the raw file themselves and come here for what stands on it: buffer and text layer, with `open`'s own arguments.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

_ARTICLES = {"encoding": "an ", "errors": "an ", "newline": "a "}

_MODE_FLAGS = {
    "r": os.O_RDONLY,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}
_FLAG_NAMES = ("O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_DIRECTORY", "O_NONBLOCK")


_CALLER = 4
"""Whom a warning of `assemble` is about: above it stand `FileFunctions` and the stand-in for `open`."""


class Mode(NamedTuple):
    """`open`'s mode, checked. ``raw`` is what the raw file gets: no "b", no "t"."""

    raw: str
    text: bool
    reading: bool
    writing: bool


def parse_mode(mode: object, *, encoding: object, errors: object, newline: object) -> Mode:
    """Raises `TypeError` and `ValueError` as `open` does for arguments that contradict each other."""
    if not isinstance(mode, str):
        raise TypeError(f"open() argument 'mode' must be str, not {type(mode).__name__}")
    letters = set(mode)
    if letters - set("axrwb+t") or len(mode) > len(letters):
        raise ValueError(f"invalid mode: {mode!r}")
    if "t" in letters and "b" in letters:
        raise ValueError("can't have text and binary mode at once")
    kinds = [letter for letter in "xrwa" if letter in letters]
    if not kinds:
        raise ValueError("Must have exactly one of create/read/write/append mode and at most one plus")
    if len(kinds) > 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    if "b" in letters:
        for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
            if value is not None:
                raise ValueError(f"binary mode doesn't take {_ARTICLES[name]}{name} argument")
    both = "+" in letters
    return Mode(
        raw=kinds[0] + ("+" if both else ""),
        text="b" not in letters,
        reading="r" in letters or both,
        writing="r" not in letters or both,
    )


def assemble(
    open_raw: Callable[[str], io.RawIOBase],
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> Any:
    """Open with ``open_raw(raw_mode)`` and put on it what ``mode`` and ``buffering`` ask for.

    Returns the raw file itself, a buffered one or a text one. Raises what `open` raises; a raw file that was opened is
    closed again.
    """
    parsed = parse_mode(mode, encoding=encoding, errors=errors, newline=newline)
    if buffering == 0 and parsed.text:
        raise ValueError("can't have unbuffered text I/O")
    raw = open_raw(parsed.raw)
    top: Any = raw
    try:
        if buffering == 0:
            return raw
        if buffering == 1 and not parsed.text:
            warnings.warn(
                "line buffering (buffering=1) isn't supported in binary mode, the default buffer size will be used",
                RuntimeWarning,
                stacklevel=_CALLER,
            )
        line_buffering = buffering == 1 or (buffering < 0 and raw.isatty())
        size = buffering if buffering > 1 else getattr(raw, "_blksize", io.DEFAULT_BUFFER_SIZE)
        if parsed.reading and parsed.writing:
            top = io.BufferedRandom(raw, size)
        elif parsed.writing:
            top = io.BufferedWriter(raw, size)
        else:
            top = io.BufferedReader(raw, size)
        if not parsed.text:
            return top
        top = io.TextIOWrapper(top, io.text_encoding(encoding, _CALLER), errors, newline, line_buffering)
        top.mode = mode
        return top
    except BaseException:
        top.close()
        raise


def mode_flags(raw_mode: str) -> int:
    """The flags of open(2) for a raw mode such as "r" or "w+"."""
    flags = _MODE_FLAGS[raw_mode[0]]
    return flags & ~(os.O_RDONLY | os.O_WRONLY) | os.O_RDWR if "+" in raw_mode else flags


def flags_text(flags: int) -> str:
    """Flags as text: "O_WRONLY|O_CREAT|O_TRUNC". Numbers differ between systems."""
    access = {os.O_WRONLY: "O_WRONLY", os.O_RDWR: "O_RDWR"}.get(flags & (os.O_WRONLY | os.O_RDWR), "O_RDONLY")
    return "|".join([access] + [name for name in _FLAG_NAMES if flags & getattr(os, name)])


def writes(flags: str) -> bool:
    """Whether a file opened with these flags (as text) can be written."""
    return not flags.startswith("O_RDONLY")
