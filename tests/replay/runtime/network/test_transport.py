"""The contract of asyncio transports, kept by the one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.network.aiohttp_peer import MemoryTransport
from replay.runtime.network.http_client_peer import MemorySocket

Make = Callable[..., Any]
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


class Told(asyncio.Protocol):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def data_received(self, data: bytes) -> None:
        self.calls.append(data.decode())

    def eof_received(self) -> None:
        self.calls.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append(f"lost: {exc}")


def exchange(error: str = "", message: str = "") -> pb.Exchange:
    one = pb.Exchange(id="x1", method="GET", url="http://h/", framing="wire", error=error, error_message=message)
    one.ended_ns = 1
    one.response_headers.add(key="Content-Length", value="2")
    for data in (b"1", b"2"):
        one.chunks.add(data=data, size=1, delay_ns=10**9)
    return one


def transport_of(world: Any) -> tuple[MemoryTransport, Told]:
    protocol = Told()
    connection = world.network.connect("h", 80, tls=False)
    transport = MemoryTransport(connection, asyncio.get_running_loop(), None)
    transport.set_protocol(protocol)
    return transport, protocol


def test_a_closed_transport_tells_so_once_and_later(replay: Make) -> None:
    world = replay(exchange())

    async def program() -> list[str]:
        transport, protocol = transport_of(world)
        transport.write(GET)
        assert not transport.is_closing()
        transport.close()
        assert transport.is_closing()
        assert protocol.calls == []
        transport.abort()
        transport.close()
        transport.write(GET)
        await asyncio.sleep(9)
        return protocol.calls

    assert world.run(program) == ["lost: None"]
    assert world.network.refusals == []


def test_a_paused_transport_holds_what_is_due(replay: Make) -> None:
    world = replay(exchange("closed"))

    async def program() -> None:
        transport, protocol = transport_of(world)
        transport.write(GET)
        await asyncio.sleep(1.5)
        assert protocol.calls == ["1"]
        transport.pause_reading()
        await asyncio.sleep(5)
        assert protocol.calls == ["1"]
        assert not transport.is_reading()
        transport.resume_reading()
        await asyncio.sleep(0.5)
        assert protocol.calls == ["1", "2", "eof", "lost: None"]

    world.run(program)


@pytest.mark.parametrize(
    ("error", "message", "lost"),
    [
        ("reset", "", "[Errno 104] Connection reset by peer"),
        ("timeout", "[Errno 110] Connection timed out", "[Errno 110] Connection timed out"),
        ("tls", "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] decryption failed (_ssl.c:2580)", "[SSL: DECRYPTION"),
    ],
)
def test_a_failed_connection_is_lost_with_the_systems_error(error: str, message: str, lost: str, replay: Make) -> None:
    world = replay(exchange(error, message))

    async def program() -> list[str]:
        transport, protocol = transport_of(world)
        transport.write(GET)
        await asyncio.sleep(9)
        return protocol.calls

    calls = world.run(program)
    assert calls[:2] == ["1", "2"]
    assert calls[2].startswith(f"lost: {lost}")


def test_after_a_clients_own_timeout_nothing_is_known(replay: Make) -> None:
    world = replay(exchange("timeout", "Timeout on reading data from socket"))

    async def program() -> list[str]:
        transport, protocol = transport_of(world)
        transport.write(GET)
        await asyncio.sleep(3.5)
        assert protocol.calls == ["1", "2"]
        assert world.network.refusals == []
        await asyncio.sleep(60)
        return protocol.calls

    assert world.run(program)[2].startswith("lost: more of the answer to x1 GET")
    assert [type(one).__name__ for one in world.network.refusals] == ["AnswerNotRecorded"]


def test_a_socket_lives_as_long_as_its_files(replay: Make) -> None:
    world = replay(exchange())
    connection = world.network.connect("h", 80, tls=False)
    sock = MemorySocket(world.network, connection, 5.0)
    file = sock.makefile("rb")
    sock.sendall(GET)
    sock.close()
    assert file.read(2) == b"12"
    assert world.passed_s == pytest.approx(2, abs=1e-3)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        sock.recv(1)


def test_a_socket_that_asked_nothing_gives_its_connection_back(replay: Make) -> None:
    one = exchange()
    one.connect_ns = 5
    world = replay(one)
    MemorySocket(world.network, world.network.connect("h", 80, tls=False), None).close()
    assert world.network.connect("h", 80, tls=False).connect_ns == 5
