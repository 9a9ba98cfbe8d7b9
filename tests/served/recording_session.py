"""Records both applications failing behind their real servers, with real services that are gone afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.served.services import Upstream

HERE = Path(__file__).parent
KINDS = ("asgi", "aiohttp")
LIMIT_S = 20.0


def record_all(folder: Path) -> dict[tuple[str, str], Path]:
    """The dumps, by kind of server and what failed: "answer" (beside another request), "upload", "slow"."""

    async def both() -> list[dict[tuple[str, str], Path]]:
        return await asyncio.gather(*(_record(kind, folder / kind) for kind in KINDS))

    first, second = asyncio.run(both())
    return first | second


async def _record(kind: str, folder: Path) -> dict[tuple[str, str], Path]:
    folder.mkdir(parents=True)
    runner = web.AppRunner(Upstream().app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    environment = os.environ | {
        "UPSTREAM": f"http://{host}:{port}",
        "DUMPS": str(folder / "dumps"),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
    }
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "serve.py"), kind, cwd=folder, env=environment, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        port = int(await asyncio.wait_for(server.stdout.readline(), LIMIT_S))
        found = {}
        for name, provoke in (("answer", _two_at_once), ("upload", _cut_upload), ("slow", _slow)):
            before = set(folder.glob("dumps/*.pplx"))
            await provoke(f"http://127.0.0.1:{port}")
            found[kind, name] = await _new_dump(folder / "dumps", before)
        return found
    finally:
        server.terminate()
        await server.wait()
        await runner.cleanup()


async def _new_dump(folder: Path, before: set[Path]) -> Path:
    """The first that was made since ``before``."""
    async with asyncio.timeout(LIMIT_S):
        while not (made := set(folder.glob("*.pplx")) - before):
            await asyncio.sleep(0.02)
    return min(made, key=lambda path: path.stat().st_mtime_ns)


async def _two_at_once(url: str) -> None:
    """Of two requests in flight at the same time, the second one fails; a third one before them is answered 503."""
    async with aiohttp.ClientSession(url) as client:

        async def ask(city: str) -> int:
            async with client.post("/answer", json={"city": city}) as answer:
                return answer.status

        async with client.get("/health") as answer:
            assert answer.status == 503
        well = asyncio.create_task(ask("Lisbon"))
        await asyncio.sleep(0.1)
        assert await ask("Faro") == 500
        assert not well.done()
        assert await well == 200


async def _cut_upload(url: str) -> None:
    """Two of three announced pieces, then the client is gone."""
    pieces = [b"a" * 1000, b"b" * 500]
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST /upload HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 2000\r\n\r\n".encode())
    for piece in pieces:
        await writer.drain()
        await asyncio.sleep(0.15)
        writer.write(piece)
    await writer.drain()
    await asyncio.sleep(0.15)
    writer.close()
    await writer.wait_closed()


async def _slow(url: str) -> None:
    """Longer than the recording's timeout."""
    timeout = aiohttp.ClientTimeout(total=1.5)
    async with aiohttp.ClientSession(url, timeout=timeout) as client:
        try:
            async with client.get("/slow") as answer:
                raise AssertionError(json.dumps(answer.status))
        except TimeoutError:
            pass
