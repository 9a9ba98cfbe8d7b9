"""Waits of asynchronous clients for something recorded, on the virtual loop they run on."""

from __future__ import annotations

import asyncio

from replay.runtime.network.connection import ConnectFailed
from replay.runtime.network.network import Network
from replay.runtime.virtual_loop import VirtualLoop


def virtual_loop(network: Network) -> VirtualLoop:
    """The running loop; where a world is installed there is no other."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    assert loop.clock is network.clock
    return loop


async def passing(network: Network, ns: int) -> None:
    """Wait until ``ns`` have passed, if only until the next round of the loop."""
    await virtual_loop(network).wait_until_due(network.clock.monotonic_ns() + ns)


async def time_of(network: Network, failure: ConnectFailed) -> None:
    """Wait until the connection fails. One that stays silent is for the timeout around this to end."""
    if failure.kind == "silence":
        await asyncio.get_running_loop().create_future()
    await passing(network, failure.after_ns)
