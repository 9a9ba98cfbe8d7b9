"""A network made of exchanges, with every client on it, and programs run on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime import loop
from replay.runtime.clock import VirtualClock
from replay.runtime.network import aiohttp_peer, http_client_peer, httpcore_peer
from replay.runtime.network.network import Network
from tests.no_sockets import no_sockets

STARTED_NS = 1_000_000_000_000


class Replay:
    """Runs programs on ``exchanges``; no socket may be touched meanwhile."""

    def __init__(self, *exchanges: pb.Exchange, **how: Any) -> None:
        self._started_ns = min((one.started_ns for one in exchanges if one.started_ns), default=STARTED_NS)
        self.clock = VirtualClock(started_ns=self._started_ns, wall_minus_monotonic_ns=1_795_000_000 * 10**9)
        self.network = Network(exchanges, clock=self.clock, **how)
        peers = (aiohttp_peer, httpcore_peer, http_client_peer)
        self._undo = [self.clock.install(), *(peer.install(self.network) for peer in peers)]

    @property
    def passed_s(self) -> float:
        return (self.clock.monotonic_ns() - self._started_ns) / 1e9

    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.network.findings()]

    def run(self, program: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def watched() -> Any:
            with no_sockets():
                return await program()

        return loop.run(self.clock, watched())

    def call(self, program: Callable[[], Any]) -> Any:
        with no_sockets():
            return program()

    def end(self) -> None:
        while self._undo:
            self._undo.pop()()


@pytest.fixture
def replay() -> Iterator[Callable[..., Replay]]:
    made: list[Replay] = []

    def make(*exchanges: pb.Exchange, **how: Any) -> Replay:
        for one in made:
            one.end()
        made.append(Replay(*exchanges, **how))
        return made[-1]

    yield make
    for one in made:
        one.end()
