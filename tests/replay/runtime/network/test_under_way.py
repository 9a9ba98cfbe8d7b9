"""Which recorded exchanges a replay is in the middle of."""

from __future__ import annotations

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.clock import VirtualClock
from replay.runtime.network.connection import Connection
from replay.runtime.network.network import Network

SECOND = 10**9
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def asked(*chunks: bytes, error: str = "") -> tuple[Network, Connection]:
    """A network of one exchange, whose pieces come a second apart, and the connection that it was asked on."""
    exchange = pb.Exchange(id="x1", method="GET", url="http://h/", direction="out", framing="wire", error=error)
    exchange.status, exchange.ended_ns = 200 if chunks else 0, 1
    for data in chunks:
        exchange.chunks.add(data=data, size=len(data), delay_ns=SECOND)
    network = Network([exchange], clock=VirtualClock(started_ns=SECOND, wall_minus_monotonic_ns=0))
    connection = network.connect("h", 80, tls=False)
    assert network.under_way() == []
    connection.send(GET)
    return network, connection


def test_an_answer_is_under_way_until_its_last_piece() -> None:
    network, _ = asked(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", b"1")
    for _ in range(2):
        assert [one.id for one in network.under_way()] == ["x1"]
        network.clock.advance(SECOND)
    assert network.under_way() == []


@pytest.mark.parametrize("chunks", [(), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",)])
def test_one_that_stays_out_is_under_way_until_the_client_gives_up(chunks: tuple[bytes, ...]) -> None:
    network, connection = asked(*chunks, error="timeout")
    network.clock.advance(60 * SECOND)
    assert [one.id for one in network.under_way()] == ["x1"]
    connection.close()
    assert network.under_way() == []
