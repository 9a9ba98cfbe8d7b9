"""``pplx-replay minimise`` as a person calls it: what it prints, and that no way of ending it loses anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from replay.cli.minimise import minimise
from replay.cli.minimise_view import _changes
from replay.minimise import minimise as module
from replay.minimise.outcome import Outcome
from tests.processes import is_gone
from tests.replay.minimise.runs import Here, dump_of, leak

SLOWLY = """
import functools, sys
from replay.cli import minimise as command
from replay.minimise.minimise import minimise
job = "tests.replay.minimise.trial_jobs:slowly"
command.minimise_dump = functools.partial(minimise, trial_function=job)
command.minimise(sys.argv[1:])
"""
"""The command, with trials that take long enough for a test to come in between."""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return dump_of(leak(), tmp_path / "leak.pplx")


def call(*arguments: object) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(minimise, [*words, "--target", "schedule", "--repeat", "1"])


def test_what_is_gone_is_said_once_and_one_is_one():
    before = {"exchanges": 3, "exceptions": 1, "draws of entropy": 1, "sections": 2, "stacks": 4, "logs": 2}
    after = {"exchanges": 1, "logs": 2}
    outcome = SimpleNamespace(before=before, after=after)
    assert _changes(cast(Outcome, outcome)) == (
        "3 exchanges to 1",
        "1 exception, 1 draw of entropy, 2 sections, 4 stacks",
    )


def test_it_says_in_words_what_is_left_and_where_it_is(dump, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "Trials", Here)
    done = call(dump, "-o", tmp_path / "small.pplx")
    assert done.exit_code == 0, done.output
    assert "2 requests, 7 tokens, 3 blocks; needs prefix cache" in done.stdout
    assert "5 requests to 2" in done.stdout
    assert "reproduced 1 of 1 in target schedule" in done.stdout
    assert f"pytest {tmp_path / 'test_small.py'}" in done.stdout
    assert "replaying the dump as recorded" in done.stderr
    assert "requests: 5 requests" in done.stderr
    again = call(tmp_path / "small.pplx", "-o", tmp_path / "again.pplx", "--json")
    document = json.loads(again.stdout)
    assert (document["already_minimal"], document["complete"]) == (True, True)
    third = call(tmp_path / "small.pplx", "-o", tmp_path / "again.pplx")
    assert third.exit_code == 2
    assert "replace it with --force" in third.stderr


class Running:
    """The command in a process of its own."""

    def __init__(self, dump: Path, out: Path) -> None:
        self.trials = out.with_name(f"{out.name}.work") / "trials.jsonl"
        words = [str(dump), "-o", str(out), "--target", "schedule", "--repeat", "1", "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SLOWLY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def until(self, trials: int) -> None:
        """Wait for so many trials in the work folder."""
        end = time.monotonic() + 60
        while not self.trials.exists() or self.trials.read_bytes().count(b"\n") < trials:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.005)

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def document(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=120)
        document: dict[str, Any] = json.loads(out)
        assert "error" not in document, err
        return document


def test_after_a_kill_and_after_ctrl_c_the_same_command_goes_on_to_the_same_end(dump, tmp_path, monkeypatch):
    out = tmp_path / "small.pplx"
    killed = Running(dump, out)
    killed.until(12)
    workers = killed.children()
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.communicate()
    assert workers
    end = time.monotonic() + 10
    while not all(is_gone(pid) for pid in workers):
        assert time.monotonic() < end, "its worker outlived it"
        time.sleep(0.01)
    assert not out.exists()
    cut = Running(dump, out)
    cut.until(24)
    cut.process.send_signal(signal.SIGINT)
    half = cut.document()
    assert cut.process.returncode == 130
    assert (half["interrupted"], half["complete"], half["resumed"]) == (True, False, True)
    assert half["verdict"] == "reproduced"
    assert half["trials"]["known"] >= 12
    whole = Running(dump, out).document()
    assert (whole["complete"], whole["resumed"]) == (True, True)
    assert whole["trials"]["known"] >= 24
    monkeypatch.setattr(module, "Trials", Here)
    assert call(dump, "-o", tmp_path / "other.pplx").exit_code == 0
    assert out.read_bytes() == (tmp_path / "other.pplx").read_bytes()
    assert not out.with_name("small.pplx.work").exists()
