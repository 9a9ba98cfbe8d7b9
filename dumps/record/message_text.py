"""Text of a program, made fit for the messages of a dump."""

from __future__ import annotations

import sys
from pathlib import Path


def utf8(text: object) -> str:
    """``text`` as a message field can hold it: valid Unicode. Exception texts, names of files and what came as JSON
    may hold lone surrogates."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def type_name(error: BaseException) -> str:
    """The qualified name of an exception's type, with the module's name as a replay can import it; those of Python
    itself go without."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return utf8(kind.__qualname__)
    return utf8(f"{module_name(str(kind.__module__))}.{kind.__qualname__}")


def module_name(name: str) -> str:
    """The name under which a replay can import a module: "__main__" is one of this process only."""
    main = sys.modules.get("__main__")
    if name != "__main__" or main is None:
        return name
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        package = str(spec.name)
        return package.removesuffix(".__main__") if package != "__main__" else package
    return Path(file).stem if file else name


def error_text(error: BaseException, limit: int) -> str:
    """``str(error)``, at most ``limit`` characters of it."""
    try:
        text = str(error)
    except Exception:  # a program's own __str__ must not cost the dump
        text = "<its message could not be made>"
    return utf8(text[:limit])
