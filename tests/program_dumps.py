"""Dumps that recorded programs left, for tests."""

from __future__ import annotations

from pathlib import Path

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.validate import validate


def dumps_in(folder: Path) -> list[pb.RuntimeState]:
    """The dumps in ``folder`` in the order they were made, each of which breaks no rule."""
    found = []
    for path in sorted(folder.glob("*.pplx"), key=lambda path: path.stat().st_mtime_ns):
        with open_dump(path) as dump:
            broken = validate(dump.state)
            assert not broken, broken
            state = pb.RuntimeState()
            state.CopyFrom(dump.state)
        found.append(state)
    return found


def only_dump(folder: Path) -> pb.RuntimeState:
    (state,) = dumps_in(folder)
    return state
