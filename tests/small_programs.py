"""Small programs, written for one test each: recorded in this process, replayed anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from dumps.record.program import recording
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from replay.isolate.environment import child_environment
from replay.isolate.limits import Limits
from replay.isolate.program import run_program
from replay.isolate.result import Result
from replay.runtime.env import Env, load_env
from replay.runtime.network.network import Fork
from replay.targets.app.entry import call
from replay.targets.app.outcome import Outcome, outcome_of
from tests.loopback import Loopback, Script

_numbers = itertools.count()

ASKING = """
import asyncio, json, os, sys, time, urllib.request

def get(url):
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
        return answer.read().decode()
"""
"""What most of them begin with: a plain way to ask a server."""


def says(text: str) -> Script:
    """A server's whole answer."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n"
    return Script([(head + text).encode()])


class SmallPrograms:
    """Modules below ``folder``, which is on the import path while one is imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, source: str, *, name: str = "") -> str:
        """A new module after `ASKING`; its name."""
        name = name or f"small{next(_numbers)}"
        (self.folder / f"{name}.py").write_text(ASKING + textwrap.dedent(source))
        return name

    def module(self, name: str) -> ModuleType:
        with self.importable():
            importlib.invalidate_caches()
            return importlib.import_module(name)

    @contextlib.contextmanager
    def importable(self) -> Iterator[None]:
        """Modules here can be imported, and frames are named by this folder."""
        sys.path.insert(0, str(self.folder))
        try:
            yield
        finally:
            sys.path.remove(str(self.folder))

    def record(
        self,
        name: str,
        /,
        entry: str = "main",
        *,
        timeout: float | None = None,
        variables: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Path:
        """Call ``entry`` of a module, recorded. Its dump: of its failure, else one on demand when it has ended.

        Its environment is that of a worker and ``variables``: without those no replay needs a second start.
        """
        folder = self.folder / f"{name}-{entry}-dumps"
        environment = child_environment(os.environ) | dict(variables or {})
        with self.importable(), mock.patch.dict(os.environ, environment, clear=True):
            function = getattr(self.module(name), entry)
            kept = contextlib.suppress(Exception, SystemExit, asyncio.CancelledError)
            with kept, recording(folder, level="full", timeout=timeout) as rec:
                rec.call(function, **arguments)
                if not rec.dumps:
                    rec.dump()
        return min(folder.glob("*.pplx"), key=lambda path: path.stat().st_mtime_ns)

    def record_served(
        self, name: str, /, *scripts: Script, entry: str = "main", timeout: float | None = None, **arguments: Any
    ) -> tuple[Path, str]:
        """`record` with the ``url`` of a server of these scripts. The dump, and that URL: nobody is there any more."""
        with Loopback(*scripts) as server:
            return self.record(name, entry, timeout=timeout, url=server.url, **arguments), server.url

    def replay(self, dump: Path, entry: str, *, timeout_s: float | None = None, **job: Any) -> Result:
        """Replay ``dump`` with "module:callable" in a worker. Without the model, unless the job says so."""
        target = {"target": f"app={entry}", "app_path": [str(self.folder)], "answers": "recorded"}
        return run_program({"dump": str(dump), **target, **job}, limits=Limits(timeout_s=timeout_s))


def play(
    dump: Path,
    function: Callable[..., Any],
    /,
    *,
    fork: Fork | None = None,
    tools: Mapping[str, str] | None = None,
    **arguments: Any,
) -> tuple[Env, Outcome]:
    """Replay ``dump`` with ``function`` in this process, where nothing guards it."""
    env = load_env(dump, fork=fork, tool_results=tools)
    with env:
        try:
            return env, Outcome(ended="returned", value=call(function, arguments))
        except BaseException as error:
            return env, outcome_of(error)


def state_of(dump: Path) -> pb.RuntimeState:
    with open_dump(dump) as opened:
        state = pb.RuntimeState()
        state.CopyFrom(opened.state)
    return state


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]
