"""Serves an application until the process is told to end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from aiohttp import web

from replay.errors import UsageError
from replay.http_log import make_http_logger
from replay.server.app import ServerConfig, make_app
from replay.server.origin import is_loopback

SHUTDOWN_S = 10.0


async def serve(
    config: ServerConfig, *, host: str, port: int, allow_remote: bool, on_ready: Callable[[str], None]
) -> None:
    """Listen on ``host``:``port`` (0: any free port) until SIGINT, SIGTERM or SIGHUP; then end the replays, too.

    ``on_ready`` gets the base URL once requests are accepted.

    Raises:
        UsageError: an address that others can reach without ``allow_remote``, or one that cannot be used.
    """
    if not allow_remote and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines",
            remedy="leave --host out, or add --allow-remote when that is what you want",
        )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    # Handler cancellation: a client that goes away ends its replay.
    runner = web.AppRunner(
        make_app(config),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
        logger=make_http_logger(logging.getLogger(__name__)),
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {os.strerror(error.errno) if error.errno else error}",
                remedy="choose another with --port, where 0 takes a free one, or another --host",
            ) from error
        on_ready(_url(runner.addresses[0]))
        await stop.wait()
    finally:
        await runner.cleanup()


def _url(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
