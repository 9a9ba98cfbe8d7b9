"""Runs a program on virtual time: one coroutine in a `VirtualLoop`, or every loop that the program makes.

What such a loop does is in `replay.runtime.virtual_loop`.
"""

from __future__ import annotations

import asyncio
import selectors
import warnings
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any, TypeVar

from dumps.record.seams.late import when_imported
from dumps.record.seams.rebind import rebind
from replay.runtime.clock import VirtualClock
from replay.runtime.errors import RuntimeReplayError
from replay.runtime.virtual_loop import Stalled, VirtualLoop

__all__ = ["Stalled", "UnsupportedLoop", "VirtualLoop", "install", "new_loop", "run"]

T = TypeVar("T")


class UnsupportedLoop(RuntimeReplayError):
    """The program brings an event loop of its own, mostly uvloop, whose time and waiting happen in C where no virtual
    clock reaches."""

    remedy = "Run it on asyncio's own loop: asyncio.run(...) instead of uvloop.run(...), loop='asyncio' for a server."


def new_loop(clock: VirtualClock) -> VirtualLoop:
    """A loop on ``clock``. Whoever makes it closes it."""
    return VirtualLoop(clock)


def run(clock: VirtualClock, coroutine: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on virtual time. Raises Stalled, VirtualTimeInThread, and whatever ``coroutine`` raises."""
    with asyncio.Runner(loop_factory=lambda: new_loop(clock)) as runner:
        return runner.run(coroutine)


def install(clock: VirtualClock) -> Callable[[], None]:
    """Give every loop that the program makes from here on virtual time; returns the way back.

    Covers ``asyncio.run``, ``asyncio.Runner``, ``asyncio.new_event_loop``, ``asyncio.get_event_loop``, the loop classes
    and what builds on them (aiohttp, anyio). uvloop, policies that are not asyncio's, and stock loops from before raise
    UnsupportedLoop when they are used, not when they are imported: on them time would stand still for ever.

    Raises UnsupportedLoop where a stock loop is running in this thread.
    """
    running = asyncio._get_running_loop()
    if running is not None and not isinstance(running, VirtualLoop):
        raise UnsupportedLoop(
            f"a {type(running).__name__} is running in this thread, and its timers would never come",
            remedy="Run the coroutine with replay.runtime.loop.run(clock, ...), or install before asyncio.run().",
        )

    class InstalledLoop(VirtualLoop):
        """The replay's loop, in place of asyncio's."""

        def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
            super().__init__(clock)

    def new_event_loop() -> asyncio.AbstractEventLoop:
        return InstalledLoop()

    def set_event_loop_policy(policy: Any) -> None:
        if policy is not None and not type(policy).__module__.startswith("asyncio."):
            kind = f"{type(policy).__module__}.{type(policy).__qualname__}"
            raise clock.refuse(UnsupportedLoop(f"the program sets the event loop policy {kind}"))
        real_set_policy(policy)
        _policy().new_event_loop = new_event_loop

    def run_forever(loop: asyncio.BaseEventLoop) -> None:
        if not isinstance(loop, VirtualLoop):
            raise clock.refuse(UnsupportedLoop(f"the program runs a {type(loop).__name__} from before the replay"))
        real_run_forever(loop)

    real_run_forever = asyncio.BaseEventLoop.run_forever
    real_set_policy = asyncio.set_event_loop_policy
    asyncio.BaseEventLoop.run_forever = run_forever  # type: ignore[method-assign,assignment]
    policy = _policy()
    policy.new_event_loop = new_event_loop  # of the instance, so that taking it out shows the class's again
    undo_names = rebind(
        {
            asyncio.new_event_loop: new_event_loop,
            asyncio.set_event_loop_policy: set_event_loop_policy,
            asyncio.SelectorEventLoop: InstalledLoop,
        }
    )
    undo_uvloop: list[Callable[[], None]] = []
    forget = when_imported("uvloop", lambda module: undo_uvloop.append(_refuse_uvloop(module, clock)))

    def undo() -> None:
        forget()
        for each in undo_uvloop:
            each()
        undo_names()
        asyncio.BaseEventLoop.run_forever = real_run_forever  # type: ignore[method-assign]
        for each_policy in (policy, _policy()):
            vars(each_policy).pop("new_event_loop", None)

    return undo


def _policy() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.14 on; policies go, this function stays
        return asyncio.get_event_loop_policy()


def _refuse_uvloop(module: ModuleType, clock: VirtualClock) -> Callable[[], None]:
    def refusing(name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            for argument in args:
                if asyncio.iscoroutine(argument):
                    argument.close()  # it will never be awaited, and that is not the program's fault
            raise clock.refuse(UnsupportedLoop(f"uvloop.{name}() was called"))

        return refuse

    names = ("run", "install", "new_event_loop", "Loop", "EventLoopPolicy")
    before = {name: getattr(module, name) for name in names if hasattr(module, name)}
    undo_names = rebind({original: refusing(name) for name, original in before.items()})
    return undo_names
