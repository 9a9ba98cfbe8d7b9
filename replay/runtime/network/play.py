"""What a recorded exchange puts on the wire of a replay, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from dumps.record.seams.http_tap import GIVEN_UP
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.runtime.errors import ResponseNotRecorded

_OF_THE_CODING = frozenset({"content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive"})
_CONTINUE_HEAD = b"HTTP/1.1 100"
_BLANK_LINE = b"\r\n\r\n"


LATE_NS = 2_000_000_000
"""How much longer than the recorded client one may wait and still let go at the same moment: computing takes no time on
its clock, but what it waited for before may have come a little later than it was recorded to."""


@dataclass(frozen=True, slots=True)
class Event:
    """What the socket gives at virtual monotonic time ``due_ns``, or later if nobody read then.

    "data" is what one read returned; "eof" the peer's end. The others are failures of the connection: "reset",
    "timeout" (the system's own, not that of a client), "tls". ``message`` is as the system had it. "unknown": from here
    on nothing is recorded, since the client had let go. A silent peer is no event at all.
    """

    due_ns: int
    kind: Literal["data", "eof", "reset", "timeout", "tls", "unknown"]
    data: bytes = b""
    message: str = ""


def play(exchange: pb.Exchange, *, from_ns: int, method: str, continued: bool = False) -> list[Event]:
    """The events of the answer to a request of ``method`` whose last byte is written at ``from_ns``.

    ``continued``: "100 Continue" has been given already, so a recorded one is left out.

    Raises ResponseNotRecorded if bytes of the answer were left out of the dump.
    """
    events = list(_timed(_pieces(exchange, method), from_ns))
    if continued:
        events = _without_continue(events)
    last_ns = events[-1].due_ns if events else from_ns
    took_ns = exchange.ended_ns - exchange.sent_ns if exchange.HasField("ended_ns") and exchange.sent_ns else 0
    end = _end(exchange, method, max(last_ns, from_ns + took_ns), last_ns)
    return events + ([end] if end else [])


def is_whole(exchange: pb.Exchange) -> bool:
    """Whether the response came to its own end, as far as the recorder saw."""
    return exchange.HasField("ended_ns") and not exchange.error and exchange.error_message != GIVEN_UP


def was_let_go(exchange: pb.Exchange) -> bool:
    """Whether the recorded program ended it: its own timeout, a cancelled task, an answer not wanted to its end."""
    if not exchange.HasField("ended_ns") or exchange.direction == "in":
        return False
    timed_out = exchange.error == "timeout" and not is_system_timeout(exchange.error_message)
    return timed_out or (not exchange.error and exchange.error_message == GIVEN_UP)


def has_no_body(method: str, status: int) -> bool:
    return method == "HEAD" or status in (204, 304) or 100 <= status < 200


def _timed(pieces: Iterable[tuple[int, bytes]], from_ns: int) -> Iterator[Event]:
    due = from_ns
    for delay, data in pieces:
        due += delay
        yield Event(due, "data", data)


def _pieces(exchange: pb.Exchange, method: str) -> Iterator[tuple[int, bytes]]:
    """(delay, bytes) as read from the wire."""
    for chunk in exchange.chunks:
        if chunk.size > len(chunk.data):
            raise ResponseNotRecorded(
                f"exchange {exchange.id}: of the answer to {exchange.method} {printable(exchange.url)} the dump holds "
                f"the sizes and not the bytes"
            )
    if exchange.framing == "wire":
        yield from ((chunk.delay_ns, chunk.data) for chunk in exchange.chunks if chunk.data)
    elif exchange.status:
        yield from _framed(exchange, method)


def _framed(exchange: pb.Exchange, method: str) -> Iterator[tuple[int, bytes]]:
    """A decoded body in a head of our own: one piece with its length, several as chunks of the transfer."""
    whole = is_whole(exchange)
    bodies = [chunk for chunk in exchange.chunks if chunk.data]
    named = [header for header in exchange.response_headers if header.key.lower() not in _OF_THE_CODING]
    lines = [f"HTTP/1.1 {exchange.status} {_phrase(exchange.status)}", *(f"{one.key}: {one.value}" for one in named)]
    first_delay = exchange.chunks[0].delay_ns if exchange.chunks else 0
    if has_no_body(method, exchange.status):
        yield first_delay, _head(lines)
        return
    chunked = len(bodies) > 1 or not whole
    lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {sum(len(b.data) for b in bodies)}")
    yield first_delay, _head(lines)
    for at, chunk in enumerate(bodies):
        data = b"%x\r\n%b\r\n" % (len(chunk.data), chunk.data) if chunked else chunk.data
        yield chunk.delay_ns if at else 0, data
    if chunked and whole:
        yield 0, b"0\r\n\r\n"


def _head(lines: list[str]) -> bytes:
    return "\r\n".join((*lines, "", "")).encode("latin-1", "replace")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _end(exchange: pb.Exchange, method: str, ended_ns: int, last_ns: int) -> Event | None:
    """How the connection ends; None where it stays open, or where nothing more came for as long as was recorded."""
    message = exchange.error_message
    if exchange.error == "closed":
        return Event(ended_ns, "eof")
    if exchange.error == "reset":
        return Event(ended_ns, "reset", message=message)
    if exchange.error == "tls":
        return Event(ended_ns, "tls", message=message)
    if exchange.error == "timeout":
        # The client's own timeout fires by itself, on the virtual clock; only the system's has to be played.
        if not is_system_timeout(message):
            return Event(ended_ns + LATE_NS, "unknown") if exchange.HasField("ended_ns") else None
        return Event(ended_ns, "timeout", message=message)
    if message == GIVEN_UP and exchange.HasField("ended_ns"):
        return Event(ended_ns + LATE_NS, "unknown")
    if is_whole(exchange) and exchange.framing == "wire" and _closes(exchange, method):
        return Event(last_ns, "eof")
    return None


def is_system_timeout(message: str) -> bool:
    """Whether the system gave the connection up (ETIMEDOUT), and not the client."""
    return "[Errno 110]" in message or "[Errno 60]" in message


def _closes(exchange: pb.Exchange, method: str) -> bool:
    """Whether the peer closes the connection after its response."""
    named = {header.key.lower(): header.value.lower() for header in exchange.response_headers}
    connection = {word.strip() for word in named.get("connection", "").split(",")}
    if "close" in connection:
        return True
    first = exchange.chunks[0].data if exchange.chunks else b""
    if first.startswith(b"HTTP/1.0") and "keep-alive" not in connection:
        return True
    has_length = "content-length" in named or "chunked" in named.get("transfer-encoding", "")
    return not has_length and not has_no_body(method, exchange.status)


def _without_continue(events: list[Event]) -> list[Event]:
    if not events or not events[0].data.startswith(_CONTINUE_HEAD):
        return events
    first, rest = events[0], events[1:]
    _, _, after = first.data.partition(_BLANK_LINE)
    return [Event(first.due_ns, "data", after), *rest] if after else rest
