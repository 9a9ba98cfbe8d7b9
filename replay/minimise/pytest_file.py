"""The pytest file that stands beside a minimised dump."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "Written by pplx-replay minimise."

_TEXT = '''"""{summary}

{mark} Green while the failure comes back. When it is fixed, keep it fixed: add "--expect", "not-reproduced".
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DUMP = HERE / {dump}
OPTIONS = [{options}]


def test_the_failure_comes_back():
    command = [sys.executable, "-m", "replay.cli", "replay", "run", str(DUMP), *OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
'''


def path_of_test(out: Path) -> Path:
    """Beside the dump, with a name that pytest collects and that is hardly one of the program's own modules."""
    return out.with_name(f"{'' if out.stem.startswith('test_') else 'test_'}{out.stem}.py")


def is_ours(path: Path) -> bool:
    """Whether a file was written by `write_test`."""
    try:
        return MARK in path.read_text(encoding="utf-8")[:2000]
    except (OSError, ValueError):
        return False


def write_test(out: Path, job: Mapping[str, Any], summary: str) -> Path:
    """Write the test of the dump ``out``, which replays it under ``job`` (see `replay.targets.job.run_job`), beside it.

    Replaces a file of ours. Paths are relative to it.
    """
    path = path_of_test(out)
    text = _TEXT.format(
        summary=summary.replace("\\", "/").replace('"', "'"),
        mark=MARK,
        dump=json.dumps(out.name),
        options=", ".join(_options(job, path.parent)),
    )
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
    return path


def _options(job: Mapping[str, Any], here: Path) -> Sequence[str]:
    """Python expressions for the arguments of ``pplx-replay run``."""
    found: list[str] = []
    for name, value in job.items():
        option = json.dumps(f"--{name.replace('_', '-')}")
        values = value if isinstance(value, list | tuple) else [value]
        for one in values:
            if one is None or (name, one) in (("target", "inference"), ("device", "auto"), ("answers", "replayed")):
                continue
            is_path = name in ("model", "app_path")
            found += [option, f"str(HERE / {json.dumps(os.path.relpath(one, here))})" if is_path else json.dumps(one)]
    return found
