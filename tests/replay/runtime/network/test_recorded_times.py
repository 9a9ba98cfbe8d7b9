"""When an answer comes: at its recorded time where it is asked for hardly later than it was, else as long after."""

from __future__ import annotations

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.clock import VirtualClock
from replay.runtime.network.connection import Connection
from replay.runtime.network.network import Network

MS = 10**6
STARTED = 10**12
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def world() -> tuple[Network, VirtualClock]:
    """Connected within 20 ms, asked 30 ms and answered 130 ms after the start."""
    exchange = pb.Exchange(id="x1", method="GET", url="http://h/", direction="out", framing="wire", status=200)
    exchange.started_ns, exchange.connect_ns, exchange.sent_ns = STARTED, 20 * MS, STARTED + 30 * MS
    exchange.chunks.add(data=ANSWER, size=len(ANSWER), delay_ns=100 * MS)
    exchange.ended_ns = STARTED + 130 * MS
    clock = VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=0)
    return Network([exchange], clock=clock), clock


def due_ms(connection: Connection) -> float:
    event = connection.peek()
    assert event is not None
    return (event.due_ns - STARTED) / MS


@pytest.mark.parametrize(("late_ms", "connected_ms", "answered_ms"), [(0, 20, 130), (3, 17, 130), (40, 20, 160)])
def test_an_answer_comes_at_its_time(late_ms: int, connected_ms: float, answered_ms: float) -> None:
    network, clock = world()
    clock.advance(late_ms * MS)
    connection = network.connect("h", 80, tls=False)
    assert connection.connect_ns / MS == connected_ms
    clock.advance(connection.connect_ns)
    connection.send(GET)
    assert due_ms(connection) == answered_ms


def test_a_request_that_is_hardly_late_is_answered_at_the_recorded_time() -> None:
    network, clock = world()
    connection = network.connect("h", 80, tls=False)
    clock.advance(33 * MS)
    connection.send(GET)
    assert due_ms(connection) == 130


def test_what_comes_next_is_known_while_nothing_is_awaited() -> None:
    network, clock = world()
    assert network.next_asked_ns(STARTED - 1) == STARTED
    assert network.next_asked_ns(STARTED) is None
    seen = [network.is_awaited]
    connection = network.connect("h", 80, tls=False)
    seen.append(network.is_awaited)
    connection.send(GET)
    seen.append(network.is_awaited)
    clock.advance(100 * MS)
    assert [*seen, network.is_awaited] == [False, True, True, False]
