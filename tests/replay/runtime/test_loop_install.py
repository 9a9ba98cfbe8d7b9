"""Every way to an event loop gives a virtual one or is refused, and the stock loop comes back."""

from __future__ import annotations

import asyncio
import selectors
import sys
import types
from pathlib import Path

import pytest

from replay.runtime.clock import NS, VirtualClock
from replay.runtime.loop import UnsupportedLoop, VirtualLoop, install, new_loop
from tests.replay.runtime.real_time import STARTED

pytestmark = pytest.mark.usefixtures("quick")


def test_every_way_to_a_loop_gives_a_virtual_one(installed: VirtualClock) -> None:
    async def which() -> type[asyncio.AbstractEventLoop]:
        await asyncio.sleep(100)
        return type(asyncio.get_running_loop())

    kinds = [asyncio.run(which())]
    with asyncio.Runner() as runner:
        kinds.append(runner.run(which()))
    for make in (
        asyncio.new_event_loop,
        asyncio.SelectorEventLoop,
        lambda: asyncio.SelectorEventLoop(selectors.DefaultSelector()),
    ):
        loop = make()
        kinds.append(loop.run_until_complete(which()))
        loop.close()
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    kinds.append(asyncio.run(which()))
    loop = asyncio.get_event_loop_policy().new_event_loop()
    kinds.append(type(loop))
    loop.close()
    asyncio.set_event_loop_policy(None)
    kinds.append(asyncio.run(which()))
    assert all(issubclass(kind, VirtualLoop) for kind in kinds)
    assert installed.monotonic_ns() - STARTED == 700 * NS


def test_a_new_loop_belongs_to_whoever_makes_it(clock: VirtualClock) -> None:
    loop = new_loop(clock)
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()
    assert clock.monotonic_ns() - STARTED == NS


def test_a_stock_loop_is_refused_rather_than_left_without_time(clock: VirtualClock) -> None:
    async def main() -> None:
        with pytest.raises(UnsupportedLoop, match="is running in this thread"):
            install(clock)

    asyncio.run(main())
    stock = asyncio.new_event_loop()
    undo = install(clock)
    with pytest.raises(UnsupportedLoop, match="from before the replay"):
        stock.run_forever()
    undo()
    stock.call_soon(stock.stop)
    stock.run_forever()
    stock.close()


def test_uninstalling_brings_the_stock_loop_back(clock: VirtualClock) -> None:
    stock = asyncio.SelectorEventLoop
    before = (asyncio.new_event_loop, asyncio.set_event_loop_policy)
    install(clock)()
    assert (asyncio.new_event_loop, asyncio.set_event_loop_policy) == before
    loop = asyncio.new_event_loop()
    loop.close()
    assert type(loop) is stock is asyncio.SelectorEventLoop


UVLOOP = """
import asyncio
class Loop: ...
class EventLoopPolicy(asyncio.DefaultEventLoopPolicy): ...
def new_event_loop(): return Loop()
def install(): asyncio.set_event_loop_policy(EventLoopPolicy())
def run(main, **kwargs): raise AssertionError("reached")
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_uvloop_is_refused_with_an_explanation(
    clock: VirtualClock, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with uvloop's names: what counts is that each of its doors is closed, however it was imported."""
    (tmp_path / "uvloop.py").write_text(UVLOOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "uvloop", raising=False)
    importer = types.ModuleType("imports_uvloop")
    monkeypatch.setitem(sys.modules, importer.__name__, importer)
    code = "import uvloop\nfrom uvloop import run"
    if when == "before":
        exec(code, vars(importer))
    undo = install(clock)
    try:
        exec(code, vars(importer))
        uvloop = importer.uvloop
        for call in (importer.run, uvloop.run):
            with pytest.raises(UnsupportedLoop, match=r"uvloop.run\(\)") as caught:
                call(asyncio.sleep(0))
            assert "asyncio.run" in caught.value.remedy
        for call in (uvloop.install, uvloop.new_event_loop, uvloop.Loop, uvloop.EventLoopPolicy):
            with pytest.raises(UnsupportedLoop):
                call()
        policy = type("EventLoopPolicy", (), {"__module__": "uvloop"})()
        with pytest.raises(UnsupportedLoop, match=r"policy uvloop.EventLoopPolicy"):
            asyncio.set_event_loop_policy(policy)
    finally:
        undo()
    with pytest.raises(AssertionError, match="reached"):
        uvloop.run(None)
