"""Starts real server processes, and speaks to them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumps.schema import state_pb2 as pb

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str
    token: str
    dumps: Path
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@contextlib.contextmanager
def started(arguments: list[str], dumps: Path, token: str | None = None, cwd: Path | None = None) -> Iterator[Server]:
    """A server process; ended with SIGTERM, which it must obey with exit code 0."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if token is not None:
        env["TMPDIR"] = str(dumps.parent)  # a killed server cannot remove its folder; pytest can
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=cwd) as process:
        try:
            assert process.stdout is not None
            if token is None:
                ready = json.loads(_document(process))
                yield Server(url=ready["url"], token=ready["token"], dumps=dumps, process=process)
            else:
                url = process.stdout.readline().strip()
                assert url, "the server ended before it was ready"
                yield Server(url=url, token=token, dumps=dumps, process=process)
            if process.poll() is None:
                process.terminate()
                assert process.wait(30) == 0
        finally:
            process.kill()


def _document(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.rstrip() == "}":
            break
    return "".join(lines)


def make_state(dump_id: str) -> pb.RuntimeState:
    """The least that the schedule target replays: one request cut when the pool's only two blocks were full."""
    state = pb.RuntimeState()
    state.manifest.id = dump_id
    state.manifest.reason = "silent-truncation"
    state.manifest.created_ns = 1_700_000_000_000_000_000
    state.active_model = "tiny"
    failure = state.failures.add()
    failure.kind = "silent-truncation"
    failure.invariant = "kv-pool-exhausted"
    return state


def upload_headers(server: Server, **options: Any) -> dict[str, str]:
    headers = {**server.headers, "Content-Type": "application/x-pplx"}
    return headers | ({"X-PPLX-Options": json.dumps(options)} if options else {})
