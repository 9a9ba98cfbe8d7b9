"""Sees to it that no socket is made, bound, connected or resolved for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_seen: list[list[str]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _seen and event.startswith("socket."):
        _seen[-1].append(event)


@contextmanager
def no_sockets() -> Iterator[None]:
    """Fails afterwards if the block touched one. An event loop has to be there already: it makes itself a pair."""
    _seen.append([])
    try:
        yield
    finally:
        events = _seen.pop()
    assert events == [], events


sys.addaudithook(_hook)  # for good: a hook cannot be taken out
