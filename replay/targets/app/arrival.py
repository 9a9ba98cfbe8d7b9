"""How a recorded request arrived at a server: its body's pieces, its end, and when its client went away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dumps.schema import state_pb2 as pb

_CANCELLED = "asyncio.exceptions.CancelledError"
_LOST = ("ConnectionResetError", "ConnectionError", "ConnectionAbortedError", "BrokenPipeError")


@dataclass(frozen=True, slots=True)
class Piece:
    due_ns: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Times are monotonic ns. ``complete_ns`` is None where the end of the body was not seen, ``gone_ns`` where the
    client stayed; ``inferred`` says that only the failure tells that it went.

    ``missing`` counts bytes that arrived and that the dump does not hold. ``failing``: the failure showed in it.
    """

    pieces: tuple[Piece, ...]
    complete_ns: int | None
    gone_ns: int | None
    inferred: bool = False
    missing: int = 0
    failing: bool = False

    @classmethod
    def of(cls, exchange: pb.Exchange, failure: pb.Failure | None = None) -> Arrival:
        """``failure`` is the one that showed in this exchange, if one did."""
        pieces = tuple(_pieces(exchange))
        arrived = sum(chunk.size for chunk in exchange.request_chunks)
        if exchange.sent_ns:
            complete: int | None = exchange.sent_ns
        elif _body_length(exchange) == len(exchange.request_body) == arrived:
            complete = pieces[-1].due_ns if pieces else exchange.started_ns
        else:
            complete = None
        gone = exchange.ended_ns if exchange.error == "closed" else None
        inferred = gone is None and failure is not None and _tells_of_a_lost_client(exchange, failure, complete)
        if inferred and failure is not None:
            gone = failure.time_ns
        return cls(
            pieces=pieces,
            complete_ns=complete,
            gone_ns=gone,
            inferred=inferred,
            missing=arrived - len(exchange.request_body),
            failing=failure is not None,
        )


def is_cancelled(failure: pb.Failure | None) -> bool:
    """Whether the server told the handler to stop, as some do when a client goes away."""
    return failure is not None and failure.exception_type == _CANCELLED


def headers(exchange: pb.Exchange, name: str) -> list[str]:
    """Values of a request header, in order; ``name`` in lower case."""
    return [header.value for header in exchange.request_headers if header.key.lower() == name]


def is_chunked(exchange: pb.Exchange) -> bool:
    return any("chunked" in value.lower() for value in headers(exchange, "transfer-encoding"))


def is_upgrade(exchange: pb.Exchange) -> bool:
    """Whether the connection turned into something else than HTTP, such as a web socket."""
    return exchange.status == 101


def _pieces(exchange: pb.Exchange) -> Iterator[Piece]:
    body, start, due = exchange.request_body, 0, exchange.started_ns
    for chunk in exchange.request_chunks:
        due += chunk.delay_ns
        if data := body[start : start + chunk.size]:
            yield Piece(due, data)
        start += chunk.size


def _body_length(exchange: pb.Exchange) -> int | None:
    """What the request says of itself; None for one that only its end ends."""
    if is_chunked(exchange):
        return None
    length = next(iter(headers(exchange, "content-length")), "0")
    return int(length) if length.isascii() and length.isdigit() else None


def _tells_of_a_lost_client(exchange: pb.Exchange, failure: pb.Failure, complete: int | None) -> bool:
    """A handler that is cancelled or cannot go on reading or writing; where it did so for another reason, it does it
    again by itself, and before its client is gone."""
    if is_cancelled(failure):
        return True
    lost = failure.exception_type.rpartition(".")[2].removeprefix("Client") in _LOST
    return exchange.client == "aiohttp" and (lost or complete is None)
