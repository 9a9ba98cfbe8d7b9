"""The two real incidents as messages that a test may change, and their replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from replay.targets.job import run_job
from tests.fixture_folders import FIXTURES, names

MODEL = FIXTURES / "nan-block" / "model"


def incident(name: str) -> tuple[pb.RuntimeState, list[SectionData]]:
    return read(FIXTURES / name / "dump.pplx")


def of_engines() -> list[str]:
    """Names of the fixtures that are runs of an engine; the others are of programs."""
    return [name for name in names() if incident(name)[0].requests]


def read(path: Path) -> tuple[pb.RuntimeState, list[SectionData]]:
    with open_dump(path) as dump:
        state = pb.RuntimeState()
        state.CopyFrom(dump.state)
        return state, [
            SectionData(kind=s.kind, data=dump.read_section(s.kind), dtype=s.dtype, shape=tuple(s.shape))
            for s in dump.sections
        ]


def replayed(folder: Path, state: pb.RuntimeState, sections: list[SectionData], **options: Any) -> dict[str, Any]:
    path = folder / "altered.pplx"
    path.unlink(missing_ok=True)
    write_dump(path, state, sections)
    report = run_job({"dump": str(path), **options}, lambda _: None)
    json.dumps(report, allow_nan=False)
    return report
