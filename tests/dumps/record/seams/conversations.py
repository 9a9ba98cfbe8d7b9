"""What passes on one connection to an HTTP server, byte for byte, and a tap that reads along."""

from __future__ import annotations

import itertools

from dumps.record.recorder import RecordLevel
from dumps.record.seams.http_tap import HttpTap
from dumps.record.seams.log import LogLimits, WorldLog
from dumps.schema import state_pb2 as pb

SECRET = b"hunter2-correct-horse"

GET = b"GET /v1/items?q=1 HTTP/1.1\r\nHost: api.example\r\n\r\n"
HEAD = b"HEAD /v1/items HTTP/1.1\r\nHost: api.example\r\n\r\n"
POST = b"POST /v1/chat HTTP/1.1\r\nHost: api.example\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
POST += b'{"stream":true}'
STREAMED = (
    b"PUT /up HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
)

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Id: 7\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n"
)
NO_BODY = b"HTTP/1.1 204 No Content\r\n\r\n"
FOR_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
UNTIL_EOF = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end"
COOKIE = b"HTTP/1.1 302 Found\r\nSet-Cookie: sid=" + SECRET + b"; Path=/\r\nContent-Length: 0\r\n\r\n"
GRANT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
GRANT += b'10\r\n{"access_token":\r\n7\r\n"hunter\r\nf\r\n2-correct-horse\r\n2\r\n"}\r\n0\r\n\r\n'

CONVERSATIONS = {
    "keep-alive": [(GET, LENGTH), (POST, CHUNKED), (HEAD, FOR_HEAD), (GET, NO_BODY), (STREAMED, CONTINUED)],
    "until eof": [(GET, LENGTH), (POST, UNTIL_EOF)],
    "secrets": [(GET, COOKIE), (GET, GRANT), (POST, LENGTH)],
}


def make_log(level: RecordLevel = RecordLevel.FULL, **limits: int) -> WorldLog:
    return WorldLog(level=level, limits=LogLimits(**limits))


def make_tap(log: WorldLog, scheme: str = "http", port: int = 80) -> HttpTap:
    tap = HttpTap(log, client="test", scheme=scheme, host="api.example", port=port)
    tap.connecting(1_000)
    tap.connected(1_500)
    return tap


def wire(exchange: pb.Exchange) -> bytes:
    return b"".join(chunk.data for chunk in exchange.chunks)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def play(conversation: list[tuple[bytes, bytes]], cuts: list[int], log: WorldLog) -> None:
    tap = make_tap(log)
    at_ns = 2_000
    for request, response in conversation:
        for piece in pieces_of(request, cuts):
            tap.sent(piece, at_ns := at_ns + 10)
        for piece in pieces_of(response, cuts):
            tap.received(piece, at_ns := at_ns + 10)
    tap.peer_closed(at_ns + 10)
