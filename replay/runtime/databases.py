"""sqlite3, which reads its files in C: no recording saw what it read, so a database file is refused.

One in memory is the program's own affair, as is one in a temporary file that SQLite makes itself, which begins empty.
From there, too, a program can get at files: by ATTACH, and by VACUUM INTO. These are refused as they are prepared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, unquote

from dumps.record.seams.late import when_imported
from dumps.record.seams.rebind import StandIn, rebind
from replay.runtime.native_files import ReadsPastTheRecord, Refuse

_FACTORY, _URI = 5, 7
"""Places of two arguments of `sqlite3.connect`, counted from the name of the database."""


def install(refuse: Refuse) -> Callable[[], None]:
    """Refuse database files from here on; returns the way back. ``refuse`` notes each error."""
    undo: list[Callable[[], None]] = []
    forget = when_imported("sqlite3", lambda module: undo.append(_refuse_files(module, refuse)))

    def uninstall() -> None:
        forget()
        while undo:
            undo.pop()()

    return uninstall


def is_in_memory(database: Any, *, uri: bool) -> bool:
    """Whether SQLite keeps the database of this name in memory, or in a temporary file of its own. ``uri`` says whether
    names that begin with "file:" are addresses."""
    if not isinstance(database, str | bytes | os.PathLike):
        return False
    name = os.fsdecode(database)
    if not (uri and name.startswith("file:")):
        return name in ("", ":memory:")
    path, _, query = name.removeprefix("file:").partition("#")[0].partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    return unquote(path) in ("", ":memory:") or options.get("mode") == "memory" or options.get("vfs") == "memdb"


def _refuse_files(module: ModuleType, refuse: Refuse) -> Callable[[], None]:
    real = module.connect

    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        given = (database, *args)
        uri = bool(given[_URI] if len(given) > _URI else kwargs.get("uri", False))
        if not is_in_memory(database, uri=uri):
            name = os.fsdecode(database) if isinstance(database, str | bytes | os.PathLike) else database
            raise refuse(ReadsPastTheRecord(f"the program opens a database file: sqlite3.connect({name!r})"))
        if len(given) > _FACTORY:
            factory = given[_FACTORY]
            given = (*given[:_FACTORY], _watched(module, factory, uri, refuse), *given[_FACTORY + 1 :])
        else:
            factory = kwargs.get("factory", module.Connection)
            kwargs = {**kwargs, "factory": _watched(module, factory, uri, refuse)}
        return real(*given, **kwargs)

    return rebind({real: StandIn(real, connect)})


def _watched(module: ModuleType, factory: Any, uri: bool, refuse: Refuse) -> Any:
    """``factory`` for connections that attach no files. One that is no class makes what it likes, and is left so."""
    if not isinstance(factory, type):
        return factory

    class Connection(factory):  # type: ignore[misc]
        """A connection of the replay."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.set_authorizer(None)

        def set_authorizer(self, authorizer_callback: Callable[..., int] | None) -> None:
            def authorize(action: int, *names: Any) -> int:
                if action == module.SQLITE_ATTACH and not is_in_memory(names[0], uri=uri):
                    refuse(ReadsPastTheRecord(f"the program attaches a database file: {names[0]!r}"))
                    return int(module.SQLITE_DENY)
                return module.SQLITE_OK if authorizer_callback is None else authorizer_callback(action, *names)

            super().set_authorizer(authorize)

    Connection.__name__, Connection.__qualname__ = factory.__name__, factory.__qualname__
    Connection.__module__ = factory.__module__
    return Connection
