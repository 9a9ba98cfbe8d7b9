"""What the seams of HTTP clients share: how they end, how they make taps, and which tap follows which object of a
library, be it a stream, a protocol or a socket."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from dumps.record.seams.http_tap import HttpTap
from dumps.record.seams.log import WorldLog
from dumps.record.seams.patches import Patches


class ClientSeam:
    """A seam in the classes of a library. ``_taps`` are by what the library has for a connection."""

    def __init__(self, log: WorldLog) -> None:
        self._log = log
        self._patches = Patches()
        self._taps = Taps()
        self._ended = False

    def end(self) -> None:
        """Take the wrappers away. Connections that are still open then go on unseen."""
        self._ended = True
        self._patches.undo()
        self._taps.clear()


class Taps:
    """Taps by the identity of what they follow, for as long as that lives. Asking about any other object is fine."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], HttpTap]] = {}

    def get(self, followed: Any) -> HttpTap | None:
        found = self._found.get(id(followed))
        return found[1] if found is not None and found[0]() is followed else None

    def put(self, followed: Any, tap: HttpTap) -> None:
        """Follow it from here on. What cannot be referred to weakly is not followed."""
        key = id(followed)
        try:
            self._found[key] = weakref.ref(followed, lambda _: self._found.pop(key, None)), tap
        except TypeError:
            tap.stopped = True

    def drop(self, followed: Any) -> HttpTap | None:
        """Follow it no more; the tap that did."""
        tap = self.get(followed)
        self._found.pop(id(followed), None)
        return tap

    def clear(self) -> None:
        self._found.clear()


def new_tap(
    log: WorldLog, client: str, address: Callable[[], tuple[str, str, int]], *, in_turns: bool = False
) -> HttpTap:
    """A tap for the connection that is asked for now; ``address`` reads scheme, host and port off a library's objects.

    Never raises: where they are not as expected, the tap is stopped from the start.
    """
    try:
        scheme, host, port = address()
        tap = HttpTap(log, client=client, scheme=scheme, host=host, port=port, in_turns=in_turns)
    except Exception:
        tap = HttpTap(log, client=client, scheme="", host="", port=0)
        tap.stopped = True
        log.lost["unreadable_connections"] += 1
    return tap
