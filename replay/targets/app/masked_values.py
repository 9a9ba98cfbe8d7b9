"""What a replayed program read that the recording had masked: where it fails differently, that may be why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dumps.record.secrets import MASK, text_spans
from dumps.schema import state_pb2 as pb
from dumps.text import printable

REMEDY = (
    'where the program depends on what the value is, keep that behind a @tool(replay="answer") that returns no secret'
)
_LONG = MASK * 4
_COOKIE = re.compile(rb"^set-cookie:[^\r\n]*=" + _LONG, re.IGNORECASE | re.MULTILINE)


def masked_values(exchanges: Iterable[pb.Exchange]) -> str:
    """One sentence on the answers of ``exchanges`` that hold a masked secret; empty where none does."""
    told = list(_named(exchanges))
    if not told:
        return ""
    more = f", and {len(told) - 3} more" if len(told) > 3 else ""
    return (
        f"the program read secrets that the recording had replaced by {_LONG.decode()}..., in the answers to "
        f"{', '.join(told[:3])}{more}: that the replay ended in another way may be due to this"
    )


def _named(exchanges: Iterable[pb.Exchange]) -> Iterator[str]:
    for exchange in exchanges:
        data = b"".join(chunk.data for chunk in exchange.chunks)
        if _LONG not in data:
            continue
        if _COOKIE.search(data) or any(_LONG in data[start:end] for start, end in text_spans(data)):
            yield f"{exchange.id} {exchange.method} {printable(exchange.url, 200)}"
