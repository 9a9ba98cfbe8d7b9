"""Text of a program, made fit for the messages of a dump."""

from __future__ import annotations


def utf8(text: object) -> str:
    """``text`` as a message field can hold it: valid Unicode. Exception texts, names of files and what came as JSON
    may hold lone surrogates."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def type_name(error: BaseException) -> str:
    """The qualified name of an exception's type; those of Python itself go without their module."""
    kind = type(error)
    return utf8(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")


def error_text(error: BaseException, limit: int) -> str:
    """``str(error)``, at most ``limit`` characters of it."""
    try:
        text = str(error)
    except Exception:  # a program's own __str__ must not cost the dump
        text = "<its message could not be made>"
    return utf8(text[:limit])
