"""Puts one object in another's place wherever a loaded module has it as a global, and takes it back out.

Setting ``time.monotonic`` does not reach a module that ran ``from time import monotonic`` before: it has a global of
its own. Such early-bound names are found by identity. Not found are references that are no module global: default
arguments, closures, class and instance attributes, containers, and what C code has looked up.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

OURS = ("replay", "dumps", "time_machine")
"""Top-level packages that keep the real thing: our own machinery measures real time and needs real entropy."""


class StandIn:
    """A callable that does not turn into a method when a class keeps it, as the built-in function it stands for."""

    def __init__(self, original: Callable[..., Any], function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def rebind(replacements: Mapping[Any, Any], *, keep: Collection[str] = ()) -> Callable[[], None]:
    """Replace each key by its value in the globals of every loaded module; returns the way back.

    Keys are compared by identity. Modules whose dotted name, or a parent of it, is in ``keep`` or ``OURS`` are left
    alone. The way back also covers modules that were loaded in between and so took the replacement for the original.
    """
    forward = [(original, new) for original, new in replacements.items() if original is not new]
    left_alone = frozenset(keep) | frozenset(OURS)
    changed = _swap({id(original): (original, new) for original, new in forward}, left_alone)

    def undo() -> None:
        for namespace, name, original, new in changed:
            if namespace.get(name) is new:
                namespace[name] = original
        _swap({id(new): (new, original) for original, new in forward}, frozenset(OURS))

    return undo


def _swap(
    pairs: Mapping[int, tuple[Any, Any]], left_alone: frozenset[str]
) -> list[tuple[dict[str, Any], str, Any, Any]]:
    changed: list[tuple[dict[str, Any], str, Any, Any]] = []
    wanted = frozenset(pairs)
    for namespace in _namespaces(left_alone):
        # Nearly no module has any of them, and there are many modules with many names: this asks in C.
        if wanted.isdisjoint(map(id, list(namespace.values()))):
            continue
        for name, value in list(namespace.items()):
            pair = pairs.get(id(value))
            if pair is not None and pair[0] is value:
                namespace[name] = pair[1]
                changed.append((namespace, name, *pair))
    return changed


def _namespaces(left_alone: frozenset[str]) -> Iterator[dict[str, Any]]:
    for module_name, module in list(sys.modules.items()):
        parts = module_name.split(".")
        if any(".".join(parts[:length]) in left_alone for length in range(1, len(parts) + 1)):
            continue
        try:
            # Not vars(): it would load a lazily imported module, and sys.modules may hold any object.
            namespace = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue
        if isinstance(namespace, dict):
            yield namespace
