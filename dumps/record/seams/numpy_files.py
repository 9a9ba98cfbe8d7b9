"""numpy reads and writes arrays by descriptor, past `open` and `os`. Here it goes through the file, as others do.

`numpy.load` and `numpy.save` do so by themselves for what is no file of the system's, so files of the program are shown
as such; `numpy.fromfile` is done again in Python. Left is ``ndarray.tofile``, a method of C.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dumps.record.seams.late import when_imported
from dumps.record.seams.rebind import StandIn, rebind

_FORMATS = ("numpy.lib.format", "numpy.lib._format_impl")
"""Where numpy asks whether a file is one of the system's; in which of them depends on its version."""


def install(is_ours: Callable[[int], bool], has_name: Callable[[Any], bool]) -> Callable[[], None]:
    """Have numpy read and write so from here on; returns the way back.

    ``is_ours`` knows the descriptors that are recorded or played, ``has_name`` the paths.
    """
    undo: list[Callable[[], None]] = []
    forget = [when_imported(name, lambda module: undo.append(_through_the_file(module, is_ours))) for name in _FORMATS]
    forget.append(when_imported("numpy", lambda module: undo.append(_read_in_python(module, is_ours, has_name))))

    def uninstall() -> None:
        for each in forget:
            each()
        while undo:
            undo.pop()()

    return uninstall


def _through_the_file(module: ModuleType, is_ours: Callable[[int], bool]) -> Callable[[], None]:
    real = getattr(module, "isfileobj", None)
    if real is None:
        return lambda: None

    def isfileobj(file: Any) -> bool:
        return bool(real(file)) and not _is_ours(file, is_ours)

    return rebind({real: isfileobj})


def _read_in_python(
    module: ModuleType, is_ours: Callable[[int], bool], has_name: Callable[[Any], bool]
) -> Callable[[], None]:
    real = module.fromfile

    def fromfile(file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0, **options: Any) -> Any:
        wanted = module.dtype(dtype)
        is_path = isinstance(file, str | bytes | os.PathLike)
        ours = has_name(file) if is_path else _is_ours(file, is_ours)
        if not ours or options or wanted.hasobject or (sep and offset):
            return real(file, dtype, count, sep, offset, **options)
        if not is_path:
            return _read(module, file, wanted, count, sep, offset)
        with open(file, "rb") as opened:
            return _read(module, opened, wanted, count, sep, offset)

    return rebind({real: StandIn(real, fromfile)})


def _read(module: ModuleType, file: Any, dtype: Any, count: int, sep: str, offset: int) -> Any:
    if sep:
        return module.fromstring(file.read(), dtype, count, sep=sep)
    if offset:
        file.seek(offset, os.SEEK_CUR)
    data = file.read(-1 if count < 0 else count * dtype.itemsize)
    return module.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype).copy()


def _is_ours(file: Any, is_ours: Callable[[int], bool]) -> bool:
    try:
        return is_ours(file.fileno())
    except (AttributeError, OSError, TypeError, ValueError):  # no file of the system's at all
        return False
