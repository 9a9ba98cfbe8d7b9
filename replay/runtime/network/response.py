"""What a recorded response said, taken out of its wire bytes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import h11

from dumps.schema import state_pb2 as pb
from replay.runtime.network.play import is_whole

MAX_BODY = 64 * 1024 * 1024
MAX_HEAD = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Response:
    """``body`` is as a program gets it, without transfer and content encodings; ``whole`` if it has its end."""

    status: int
    body: bytes
    whole: bool


def response_of(exchange: pb.Exchange) -> Response:
    """The response as far as it came; an unreadable one ends where it can no longer be read."""
    if exchange.framing != "wire":
        return Response(exchange.status, b"".join(chunk.data for chunk in exchange.chunks), is_whole(exchange))
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
    status, encoding, body, whole = exchange.status, "", bytearray(), False
    try:
        parser.send(h11.Request(method=exchange.method or "GET", target="/", headers=[("host", "-")]))
        parser.send(h11.EndOfMessage())
        pieces = [chunk.data for chunk in exchange.chunks if chunk.data]
        for piece in [*pieces, b""] if is_whole(exchange) or exchange.error == "closed" else pieces:
            parser.receive_data(piece)
            while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED) and not whole:
                if isinstance(event, h11.Response):
                    status = event.status_code
                    encoding = next((v.decode("latin-1") for k, v in event.headers if k == b"content-encoding"), "")
                elif isinstance(event, h11.Data) and len(body) < MAX_BODY:
                    body += event.data
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    whole = True
            if whole:
                break
    except h11.ProtocolError:
        whole = False
    return Response(status, _decoded(bytes(body), encoding.strip().lower()), whole)


def _decoded(body: bytes, encoding: str) -> bytes:
    """As far as it can be inflated: a stream that was cut has no end."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return body
    for window in (31,) if encoding != "deflate" else (15, -15):
        try:
            return zlib.decompressobj(window).decompress(body, MAX_BODY)
        except zlib.error:
            continue
    return body
