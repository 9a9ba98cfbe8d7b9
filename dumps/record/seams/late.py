"""Seams for libraries that a program imports after its recording began."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_log = logging.getLogger(__name__)
_lock = threading.RLock()
_waiting: dict[str, list[Callable[[ModuleType], object]]] = {}


def when_imported(name: str, callback: Callable[[ModuleType], object]) -> Callable[[], None]:
    """Call ``callback`` with the module ``name``: at once if it is imported, else right after its code has run.

    Returns what makes it not be called any more. An error of the callback is logged and goes no further: an import of
    the program must not fail for its recording.
    """
    with _lock:
        if name not in sys.modules:
            _waiting.setdefault(name, []).append(callback)
            if _finder not in sys.meta_path:
                sys.meta_path.insert(0, _finder)
            return lambda: _forget(name, callback)
    _call(callback, importlib.import_module(name))  # waits for another thread that is about to import it
    return lambda: None


def _forget(name: str, callback: Callable[[ModuleType], object]) -> None:
    with _lock:
        callbacks = _waiting.get(name, [])
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks:
            _waiting.pop(name, None)
        if not _waiting and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)


def _imported(module: ModuleType) -> None:
    with _lock:
        callbacks = list(_waiting.get(module.__name__, []))
        for callback in callbacks:
            _forget(module.__name__, callback)
    for callback in callbacks:
        _call(callback, module)


def _call(callback: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        callback(module)
    except Exception:
        _log.exception("recording: %s could not be prepared, so what it does is not recorded", module.__name__)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: has the modules that are waited for found by the others, and watches their loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Watched(spec.loader)
                return spec
        return None


class _Watched(importlib.abc.Loader):
    """The loader of one module, in place until its code has run."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _imported(module)


_finder = _Finder()
