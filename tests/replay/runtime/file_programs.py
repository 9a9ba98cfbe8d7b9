"""Programs around files: recorded on the real file system, and played with the files gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dumps.record.recorder import RecordLevel
from dumps.record.seams import files as recorded_files
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from replay.runtime.files import Files


def record(program: Callable[[], Any], *, level: RecordLevel = RecordLevel.FULL) -> tuple[Any, list[pb.Syscall]]:
    """What the program saw, an error included, and what was recorded of it. Its files are gone afterwards."""
    log = WorldLog(level=level)
    undo = recorded_files.install(log)
    try:
        seen = outcome(program)
    finally:
        undo()
    for path in Path.cwd().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return seen, log.syscalls


def replay(calls: list[pb.Syscall], program: Callable[[], Any], **options: Any) -> Any:
    with played(calls, **options):
        return outcome(program)


@contextmanager
def played(calls: list[pb.Syscall], **options: Any) -> Iterator[Files]:
    files = Files(calls, **options)
    undo = files.install()
    try:
        yield files
    finally:
        undo()


def outcome(program: Callable[[], Any]) -> Any:
    try:
        return program()
    except OSError as error:
        return type(error), error.errno, error.filename, str(error)
