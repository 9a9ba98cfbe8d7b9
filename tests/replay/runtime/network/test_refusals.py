"""What is refused, how it reaches the program through each client, and what a fork may answer."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable
from typing import Any

import aiohttp
import httpcore
import httpx
import pytest
import urllib3

from dumps.schema import state_pb2 as pb
from replay.runtime.errors import SyncClientInThread, UnrecordedRequest, WaitsForEver
from replay.runtime.loop import Stalled
from replay.runtime.network import aiohttp_peer
from tests.no_sockets import no_sockets
from tests.seen_by import ASYNC, SYNC

Make = Callable[..., Any]
SILENT = pb.Exchange(id="x1", method="GET", url="http://h/", framing="wire", direction="out")


@pytest.mark.parametrize("name", [*ASYNC, *SYNC])
def test_an_unrecorded_request_reaches_the_program_as_it_is(name: str, replay: Make) -> None:
    world = replay(SILENT)
    url = "http://h/other"
    seen = world.run(lambda: ASYNC[name](url)) if name in ASYNC else world.call(lambda: SYNC[name](url))
    assert seen.error is not None
    assert seen.error[0].startswith("replay.runtime.errors.UnrecordedRequest")
    assert "url.path\n      recorded (dump): /\n      replayed (your code): /other" in seen.error[1]
    assert world.kinds() == ["unrecorded", "left-over"]
    assert [type(error) for error in world.network.refusals] == [UnrecordedRequest]
    assert "tests/seen_by.py" in world.network.findings()[0].call_site[0].filename


class Answering:
    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def handle(self, request: pb.Exchange) -> pb.Exchange | None:
        if not request.url.endswith(self.paths):
            return None
        answer = pb.Exchange(status=201, framing="body", ended_ns=1)
        answer.chunks.add(data=b"forked", size=6)
        return answer


def test_a_fork_answers_what_it_knows_and_that_is_told(replay: Make) -> None:
    world = replay(SILENT, fork=Answering("/new"))
    seen = world.run(lambda: ASYNC["httpx"]("http://h/new"))
    assert (seen.status, seen.pieces) == (201, [b"forked"])
    seen = world.run(lambda: ASYNC["httpx"]("http://h/other"))
    assert seen.error is not None
    assert world.kinds() == ["forked", "unrecorded", "left-over"]
    assert "GET http://h/new" in world.network.findings()[0].message


@pytest.mark.parametrize("name", SYNC)
def test_a_blocking_client_in_a_thread_is_refused(name: str, replay: Make) -> None:
    world = replay(SILENT)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(SYNC[name]("http://h/")), name="side")
    thread.start()
    thread.join(10)
    assert found[0].error[0].startswith("replay.runtime.errors.SyncClientInThread")
    assert "'side'" in found[0].error[1]
    assert [type(error) for error in world.network.refusals] == [SyncClientInThread]


def test_waiting_without_a_timeout_for_what_never_came_is_no_progress(replay: Make) -> None:
    world = replay(SILENT)
    with pytest.raises(WaitsForEver, match="no timeout"):
        world.call(lambda: httpx.get("http://h/", timeout=None, trust_env=False))

    async def ask() -> None:
        async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
            await client.get("http://h/")

    with pytest.raises(Stalled, match=r"test_refusals\.py"):
        replay(SILENT).run(ask)


def entrances() -> tuple[object, ...]:
    """What the replay stands in for, in each library."""
    return (
        aiohttp.TCPConnector._create_connection,
        aiohttp.BaseConnector.connect,
        http.client.HTTPConnection.connect,
        http.client.HTTPSConnection.connect,
        httpcore.AnyIOBackend.connect_tcp,
        urllib3.util.connection.create_connection,
    )


def test_sessions_made_before_and_libraries_put_back(replay: Make) -> None:
    answered = pb.Exchange(id="x1", method="GET", url="http://h/", framing="body", status=200, ended_ns=1)
    before = entrances()
    client = httpx.Client(trust_env=False)
    connection = http.client.HTTPConnection("h")
    pool = urllib3.PoolManager()
    world = replay(answered, answered, answered, answered)
    with no_sockets():
        assert client.get("http://h/").status_code == 200
        connection.request("GET", "/")
        assert connection.getresponse().read() == b""
        assert pool.request("GET", "http://h/").status == 200
    connection.close()
    client.close()
    pool.clear()

    async def made_before() -> int:
        async with aiohttp.ClientSession() as session:
            undo = aiohttp_peer.install(world.network)
            async with session.get("http://h/") as response:
                undo()
                return response.status

    world._undo.pop(1)()  # aiohttp's peer, to have a session from before
    assert world.run(made_before) == 200
    world.end()
    assert all(one is other for one, other in zip(before, entrances(), strict=True))


def test_time_out_of_a_whole_request_fires_on_virtual_time(replay: Make) -> None:
    async def ask() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session, session.get("http://h/"):
            raise AssertionError

    world = replay(SILENT)
    with pytest.raises(asyncio.TimeoutError):
        world.run(ask)
    assert world.passed_s == pytest.approx(30, abs=1.01)


def test_the_sensor_of_these_tests_senses(replay: Make) -> None:
    """Without its peer a client touches sockets, and `no_sockets` says so."""
    world = replay(SILENT)
    for undo in world._undo[1:]:
        undo()
    del world._undo[1:]
    with pytest.raises(AssertionError, match="getaddrinfo"):
        world.call(lambda: SYNC["urllib3"]("http://127.0.0.1:1/"))


def test_who_asks_is_known_though_another_task_writes(replay: Make) -> None:
    """aiohttp writes a body from a task of its own."""

    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            await session.post("http://h/", data=b"body")

    async def program() -> None:
        await asyncio.create_task(ask(), name="agent")

    world = replay(SILENT)
    with pytest.raises(UnrecordedRequest, match=r"\(task 'agent', at tests/.*test_refusals\.py:\d+ in .*ask\)"):
        world.run(program)


@pytest.mark.parametrize(
    ("owner", "name", "library"),
    [
        (urllib3.connection, "_ssl_wrap_socket_and_match_hostname", "urllib3"),
        (aiohttp.TCPConnector, "_create_connection", "aiohttp"),
        (httpcore.AnyIOBackend, "connect_tcp", "httpcore"),
    ],
)
def test_a_version_that_is_not_known_is_told(
    owner: Any, name: str, library: str, replay: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for base in owner.__mro__[:-1] if isinstance(owner, type) else [owner]:
        monkeypatch.delattr(base, name, raising=False)
    [finding] = replay().network.findings()
    assert finding.message == f"unknown version of {library}: what it sends is not replayed"


def test_of_many_requests_that_were_not_asked_the_first_are_told_and_the_rest_counted(replay: Make) -> None:
    many = [pb.Exchange(id=f"x{at}", method="GET", url=f"http://h/{at}", direction="out") for at in range(1000)]
    left = replay(*many).network.findings()
    assert [one.exchange_id for one in left] == [f"x{at}" for at in range(51)]
    assert "950 more" in left[-1].message
    assert len(replay(*many[:50]).network.findings()) == 50
