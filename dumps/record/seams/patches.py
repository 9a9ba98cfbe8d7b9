"""Attributes replaced by a seam, and put back exactly as they were."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from dumps.record.seams.late import when_imported

Method = Callable[..., Any]
Wrap = Callable[[Method], Method]
"""Makes what is to stand in the place of a method from the method itself."""

_ABSENT = object()


class Patches:
    """What one seam replaced. Not thread-safe: a recording is begun and ended by one thread."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []
        self._forget: list[Callable[[], None]] = []

    def when_imported(self, name: str, callback: Callable[[ModuleType], object]) -> None:
        """`late.when_imported`, until `undo`."""
        self._forget.append(when_imported(name, callback))

    def wrap(self, owner: Any, name: str, make: Wrap) -> bool:
        """Put ``make(original)`` in the place of ``owner.name``; False where there is no such attribute.

        What ``make`` returns gets the name and signature of the original.
        """
        original = getattr(owner, name, None)
        if original is None:
            return False
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, functools.wraps(original)(make(original)))
        return True

    def wrap_all(self, wanted: Iterable[tuple[Any, str, Wrap]]) -> bool:
        """`wrap` each of them that there is; False when one was missing."""
        missing = [name for owner, name, make in wanted if not self.wrap(owner, name, make)]
        return not missing

    def undo(self) -> None:
        while self._forget:
            self._forget.pop()()
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
