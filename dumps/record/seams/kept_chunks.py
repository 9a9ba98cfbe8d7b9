"""The chunks of a response in the log, and what becomes of them when a secret shows only in a later one."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from dumps.record.secrets import Span, masked
from dumps.schema import state_pb2 as pb


class KeptChunks:
    """The chunks of ``exchange``, each with the place of its first byte, counted as the caller counts them."""

    def __init__(self, exchange: pb.Exchange) -> None:
        self._exchange = exchange
        self._starts: list[int] = []

    def add(self, kept: bytes, *, start: int, size: int, delay_ns: int) -> None:
        """Add the next one: ``size`` bytes came, of which ``kept``, all or none, is shown."""
        self._starts.append(start)
        self._exchange.chunks.add(data=kept, delay_ns=max(0, delay_ns), size=size)

    def mask_before(self, start: int, spans: Iterable[Span]) -> None:
        """Mask what turns out to be a secret only now, where it begins before ``start``."""
        for first, end in spans:
            if first >= start:
                continue
            for index in range(bisect.bisect_right(self._starts, first) - 1, len(self._starts)):
                chunk, place = self._exchange.chunks[index], self._starts[index]
                if place >= end:
                    break
                chunk.data = masked(chunk.data, [(first - place, end - place)])

    def hide(self) -> None:
        """Keep nothing of them but sizes and times."""
        for chunk in self._exchange.chunks:
            chunk.data = b""
