"""What a recorded response said, from wire bytes that are whole, cut, compressed or damaged."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from replay.runtime.network.response import Response, response_of

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


def wire(pieces: Sequence[bytes], error: str = "") -> pb.Exchange:
    exchange = pb.Exchange(method="POST", url="http://h/", framing="wire", status=200, error=error, ended_ns=1)
    for piece in pieces:
        exchange.chunks.add(data=piece, size=len(piece))
    return exchange


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=5))
def test_however_it_is_cut_into_reads(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(CHUNKED)]
    pieces = [CHUNKED[start:end] for start, end in pairwise(places)]
    assert response_of(wire(pieces)) == Response(200, b"onetwo", True)


@pytest.mark.parametrize(
    ("data", "error", "expected"),
    [
        (HEAD + b"Content-Length: 2\r\n\r\nok", "", Response(200, b"ok", True)),
        (HEAD + b"Content-Length: 9\r\n\r\nok", "reset", Response(200, b"ok", False)),
        (HEAD + b"\r\nuntil it closes", "", Response(200, b"until it closes", True)),
        (HEAD + b"\r\nuntil it closes", "reset", Response(200, b"until it closes", False)),
        (CHUNKED[:-8], "reset", Response(200, b"onetw", False)),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "closed", Response(200, b"", False)),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "", Response(404, b"", True)),
        (b"nothing of HTTP\r\n\r\n", "", Response(200, b"", False)),
        (b"", "reset", Response(200, b"", False)),
    ],
)
def test_whole_and_cut(data: bytes, error: str, expected: Response) -> None:
    assert response_of(wire([data], error)) == expected


def test_compressed_even_where_it_is_cut() -> None:
    packed = gzip.compress(b"word " * 400)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    assert response_of(wire([head, packed])).body == b"word " * 400
    cut = response_of(wire([head, packed[:-12]], "reset"))
    assert cut.body
    assert (b"word " * 400).startswith(cut.body)
    assert not cut.whole
