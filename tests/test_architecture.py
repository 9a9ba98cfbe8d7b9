"""What tools say of the code: imports run one way, types hold, lint is clean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_imports_run_one_way():
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(cache_dir=None))"
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stdout


def test_types():
    done = run(sys.executable, "-m", "mypy")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")])
def test_lint(arguments):
    done = run(sys.executable, "-m", "ruff", *arguments, ".")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("dumps.schema.reader", "torch"),
        ("replay", "torch"),
        ("replay.cli.main", "click"),  # Ctrl-C is caught from the first import on
        ("replay.cli.groups", "torch"),
        ("replay.targets.job", "torch"),
        ("replay.server.app", "torch"),
        ("dumps.record.recorder", "google.protobuf"),
        ("dumps.record.recorder", "numpy"),
    ],
)
def test_what_an_import_does_not_bring(module, absent):
    done = run(sys.executable, "-c", f"import sys, {module}; raise SystemExit({absent!r} in sys.modules)")
    assert done.returncode == 0, f"import {module} brings {absent}: {done.stderr}"
