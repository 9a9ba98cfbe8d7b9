"""Captures the golden incidents: runs each failure for real and keeps the dump that was written.

    python -m tests.capture kv-overflow nan-block

Nothing in a fixture is typed in: the signature is the dump's, and what its replays show is read from their reports.
A capture whose replays do not reach the verdicts that its incident names is not kept.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dumps.schema.reader import open_dump
from replay.fixtures.options import job_options
from replay.isolate.program import run_program
from replay.isolate.supervisor import run as run_isolated
from replay.report import tool_version
from replay.targets.app.options import is_app
from replay.targets.expected import own_signature
from tests.captures import clients, numbers, pool, programs
from tests.captures.incident import Incident
from tests.fixture_folders import FIXTURES, shown

INCIDENTS: Mapping[str, Incident] = {
    **pool.INCIDENTS,
    **numbers.INCIDENTS,
    **clients.INCIDENTS,
    **programs.INCIDENTS,
}


def capture(name: str) -> Path:
    """Make the fixture folder of one incident anew.

    Raises AssertionError and leaves the old one when it is not right.
    """
    incident = INCIDENTS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "fixture" / name
        folder.mkdir(parents=True)
        incident.record(folder, Path(scratch))
        replays = [_replayed(folder, options, verdict, incident) for options, verdict in incident.replays]
        with open_dump(folder / "dump.pplx") as dump:
            signature = own_signature(dump.state)
        assert signature is not None
        document = {
            "name": name,
            "state": "open",
            "note": incident.note,
            "captured": {"date": time.strftime("%Y-%m-%d"), "tool_version": tool_version()},
            "signature": signature.to_json(),
            **({"model": "model"} if _needs_telling(folder, incident) else {}),
            "replays": replays,
        }
        (folder / "fixture.json").write_text(json.dumps(document, indent=2) + "\n")
        target = FIXTURES / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)
    return target


def _needs_telling(folder: Path, incident: Incident) -> bool:
    """Whether the fixture must say where its weights are: those beside an engine's dump are found."""
    return (folder / "model").is_dir() and is_app(incident.replays[0][0].get("target"))


def _replayed(folder: Path, options: Mapping[str, Any], verdict: str, incident: Incident) -> dict[str, Any]:
    """A replay of the dump in ``folder``, whose options mean what they mean where the fixture will be."""
    model = str(folder / "model") if _needs_telling(folder, incident) else None
    job = {"dump": str(folder / "dump.pplx"), **job_options(options, FIXTURES / folder.name, model)}
    result = (run_program if is_app(job.get("target")) else run_isolated)(job)
    assert result.report is not None, result.error
    assert result.report["verdict"] == verdict, (options, result.report)
    entry: dict[str, Any] = {"options": dict(options), "verdict": verdict}
    if verdict == "inconclusive":
        entry["reason"] = result.report["reason_code"]
    if verdict == "reproduced":
        entry["shows"] = {path: shown(result.report, path) for path in incident.shows}
    return entry


def main(names: Sequence[str]) -> None:
    for name in names or list(INCIDENTS):
        target = capture(name)
        size = (target / "dump.pplx").stat().st_size
        sys.stdout.write(f"{target.relative_to(FIXTURES.parent)}: dump of {size:,} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
