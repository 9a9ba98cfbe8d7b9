"""``pplx-replay fuzz`` as a person calls it: what it prints, and that no way of ending it loses what was found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from replay.cli.fuzz import fuzz
from tests.job_replays import replayed
from tests.processes import is_gone
from tests.replay.fuzz.searches import KV_OVERFLOW, stand_in

QUIRK = ("--quirk", "abort-after-finish")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's folder, in which the command is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("replay.cli.fuzz.set_hypothesis_home_dir", lambda folder: None)  # that is of this process
    stand_in(monkeypatch)
    return tmp_path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(fuzz, [str(argument) for argument in (KV_OVERFLOW, "--seed", 4, *arguments)])


def test_it_says_what_is_known_what_was_found_and_where_it_is(folder):
    done = call("--examples", 30, *QUIRK)
    assert done.exit_code == 1, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("known        silent-truncation (kv-pool-exhausted): ")
    assert "found        exception KeyError" in lines
    assert "1 request, 2 tokens, 1 block; needs quirk abort-after-finish and an abort together" in done.stdout
    assert "--seed 4 searches the same" in done.stdout
    assert "found: exception KeyError" in done.stderr
    [dump] = (folder / ".pplx" / "fuzz" / "found").glob("*.pplx")
    assert str(dump.relative_to(folder)) in done.stdout
    assert replayed(dump, None, target="schedule")["verdict"] == "reproduced"
    assert (folder / ".pplx" / "fuzz" / "examples").is_dir()
    again = call("--examples", 1, *QUIRK, "--json")
    document = json.loads(again.stdout)
    assert (document["found"][0]["before"], document["examples"], document["complete"]) == (True, 1, True)


def test_a_search_that_finds_nothing_ends_with_0(folder):
    done = call("--examples", 20)
    assert done.exit_code == 0, done.output
    assert "nothing that the dumps do not record" in done.stdout


def test_options_that_cannot_be_are_usage_errors(folder):
    for words in (["--target", "rocket"], ["--quirk", "prefix-leek"], ["--time", "soon"], ["--examples", "0"]):
        assert call(*words).exit_code == 2


class Running:
    """The command in a process of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.found = folder / ".pplx" / "fuzz" / "found"
        command = [sys.executable, "-m", "replay.cli", "replay", "fuzz", str(KV_OVERFLOW), *QUIRK, "--json", *words]
        root = str(Path(__file__).parents[3])
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": root},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, pattern: str) -> Path:
        """Wait for a file in the folder of what was found."""
        end = time.monotonic() + 60
        while not (there := list(self.found.glob(pattern))):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)
        return there[0]

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def document(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=60)
        document: dict[str, Any] = json.loads(out)
        assert "error" not in document, err
        return document


def test_after_a_kill_what_was_found_is_there_and_ctrl_c_tells_of_it(tmp_path):
    killed = Running(tmp_path, "--seed", "4", "--examples", "100000")
    report = killed.until("*.json")
    workers = killed.children()
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.communicate()
    dump = Path(json.loads(report.read_text())["dump"])
    assert replayed(tmp_path / dump, None, target="schedule")["verdict"] == "reproduced"
    end = time.monotonic() + 10
    while not all(is_gone(pid) for pid in workers):
        assert time.monotonic() < end, "its worker outlived it"
        time.sleep(0.01)
    cut = Running(tmp_path, "--seed", "2", "--examples", "100000")
    try:
        cut.until("test_exception-*.py")
        while list(cut.found.glob("*.met.pplx")):  # it goes when the report is written
            time.sleep(0.01)
        cut.process.send_signal(signal.SIGINT)
        document = cut.document()
    finally:
        cut.process.kill()
    assert cut.process.returncode == 130
    assert (document["interrupted"], document["complete"]) == (True, False)
    [found] = document["found"]
    assert (found["identity"]["exception_type"], found["before"], found["shrunk"]) == ("builtins.KeyError", True, True)
