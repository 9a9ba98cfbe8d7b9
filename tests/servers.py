"""The reference server as a process of its own, for tests that talk to it over a real socket."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

READY_S = 120.0
EXIT_S = 60.0

Client = Callable[[aiohttp.ClientSession, int], Coroutine[Any, Any, None]]


@dataclass(slots=True, eq=False)
class ServerProcess:
    """A running server. ``log`` grows as it writes to stderr."""

    process: subprocess.Popen[str]
    url: str
    ring: Path
    dumps: Path
    log: list[str] = field(default_factory=list)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit status, negative for a signal that killed it."""
        return self.process.wait(EXIT_S)

    def kill(self) -> None:
        """As an out-of-memory kill would: no handler runs."""
        self.send(signal.SIGKILL)
        self.wait()

    def dump_files(self) -> list[Path]:
        """Dumps written so far, oldest first."""
        return sorted(self.dumps.glob("*.pplx"), key=lambda path: path.stat().st_mtime_ns)


async def kill_under_load(server: ServerProcess, client: Client, *, clients: int, metric: str, count: int) -> None:
    """Keep the server busy with so many of ``client(session, number)`` until its ``metric`` has reached ``count``, then
    SIGKILL it in mid-flight."""

    async def counted(session: aiohttp.ClientSession) -> int:
        async with session.get(f"{server.url}/metrics") as response:
            match = re.search(rf"^{metric} (\d+)", await response.text(), re.MULTILINE)
        return int(match[1]) if match else 0

    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(client(session, number)) for number in range(clients)]
        while await counted(session) < count:
            await asyncio.sleep(0.02)
        server.kill()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def running_server(model: Path, dump_dir: Path, *options: str, debug: int = 0) -> Iterator[ServerProcess]:
    """Start ``pplx-server`` on a free port, wait until it is ready, and kill it in the end whatever happened."""
    arguments = ["--model", str(model), "--port", "0", "--dump-dir", str(dump_dir)]
    arguments += ["--threads", "1", "--device", "cpu", *options]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "HF_HUB_OFFLINE": "1",
        "PPLX_DEBUG": str(debug),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "replay.cli", "server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    log: list[str] = []
    lines: queue.Queue[str | None] = queue.Queue()
    readers = [
        threading.Thread(target=_read, args=(process.stderr, log.append), daemon=True),
        threading.Thread(target=_read, args=(process.stdout, lines.put), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        said: dict[str, str] = {}
        while "ready" not in said:
            line = lines.get(timeout=READY_S)
            if line is None:
                raise AssertionError("the server ended before it was ready:\n" + "".join(log))
            word, _, rest = line.strip().partition(" ")
            said[word] = rest
        yield ServerProcess(process, said["ready"], Path(said["ring"]), Path(said["dumps"]), log)
    finally:
        process.kill()
        process.wait(EXIT_S)
        for reader in readers:
            reader.join(EXIT_S)
        process.stdout.close()
        process.stderr.close()


def _read(stream, take) -> None:
    for line in stream:
        take(line)
    take("" if take.__name__ == "append" else None)
