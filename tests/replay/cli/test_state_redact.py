from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.cli.state_redact import redact
from tests.fixture_folders import FIXTURES

OVERFLOW = FIXTURES / "kv-overflow" / "dump.pplx"
TEXT = "Ada Lovelace \x1b[31mtakes it twice a day"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(redact, [str(argument) for argument in arguments])


def with_text(folder: Path) -> Path:
    """The overflow's dump, recorded at level full."""
    with open_dump(OVERFLOW) as dump:
        state = pb.RuntimeState()
        state.CopyFrom(dump.state)
    state.manifest.record_level = "full"
    for request in state.requests:
        request.prompt_text = TEXT
    path = folder / "full.pplx"
    write_dump(path, state)
    return path


def test_a_dump_is_written_and_its_verdict_is_told(tmp_path):
    done = run(with_text(tmp_path), "-o", tmp_path / "out.pplx", "--prompt")
    assert done.exit_code == 0, done.output
    assert "requests[].prompt_text" in done.stdout
    assert "reproduced in target schedule before and after" in done.stdout
    assert "non-finite" in done.stdout
    assert "Ada" not in done.output
    with open_dump(tmp_path / "out.pplx") as dump:
        assert dump.state.manifest.record_level == "tokens"
        assert not dump.state.requests[0].HasField("prompt_text")


def test_json(tmp_path):
    done = run(with_text(tmp_path), "-o", tmp_path / "out.pplx", "--json")
    document = json.loads(done.stdout)
    (text,) = [one for one in document["changes"] if one["path"] == "requests[].prompt_text"]
    assert text == {
        "path": "requests[].prompt_text",
        "what": "removed",
        "reason": "text of people",
        "count": 6,
        "bytes": 6 * len(TEXT),
    }
    assert document["check"]["kept"] is True
    assert document["check"]["before"]["verdict"] == "reproduced"
    assert document["out"] == str(tmp_path / "out.pplx")
    with open_dump(tmp_path / "out.pplx") as dump:
        assert dump.state.manifest.id == document["id"]
    assert "Ada" not in done.stdout


def test_a_preview_writes_nothing_and_shows_no_text(tmp_path):
    path = with_text(tmp_path)
    done = run(path, "--preview")
    assert done.exit_code == 0
    assert "requests[].prompt_text" in done.stdout
    assert "nothing was written" in done.stderr
    assert "Ada" not in done.output
    assert json.loads(run(path, "--preview", "--json").stdout)["changes"]
    assert [one.name for one in tmp_path.iterdir()] == ["full.pplx"]


def test_examples_are_shown_on_a_terminal_only_and_escaped(tmp_path):
    path = with_text(tmp_path)
    piped = run(path, "--preview", "--examples")
    assert piped.exit_code == 2
    assert "only on a terminal" in piped.stderr
    command = [sys.executable, "-m", "replay.cli", "state", "redact", str(path), "--preview", "--examples"]
    shown = on_a_terminal(command)
    assert "Ada Lovelace \\x1b[31mtakes" in shown
    assert "Ada Lovelace \x1b[31m" not in shown


def on_a_terminal(command: list[str]) -> str:
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "250", "TERM": "dumb"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        out = b""
        try:
            while data := os.read(ours, 65536):
                out += data
        except OSError:  # how Linux says that the other end is closed
            pass
        assert process.wait() == 0
    os.close(ours)
    return out.decode()


def test_without_a_check_no_replay_is_made(tmp_path):
    done = run(OVERFLOW, "-o", tmp_path / "out.pplx", "--no-check", "--json")
    check = json.loads(done.stdout)["check"]
    assert (check["kept"], check["note"]) == (None, "not asked for")


def test_options_that_do_nothing_are_refused(tmp_path):
    out = tmp_path / "out.pplx"
    for arguments in (
        (OVERFLOW,),
        (OVERFLOW, "--preview", "-o", out),
        (OVERFLOW, "-o", out, "--examples"),
        (OVERFLOW, "-o", out, "--no-check", "--model", tmp_path),
    ):
        assert run(*arguments).exit_code == 2, arguments
    assert not out.exists()


def test_what_is_no_dump_is_told_with_code_4(tmp_path):
    (tmp_path / "no.pplx").write_text("hello")
    done = run(tmp_path / "no.pplx", "-o", tmp_path / "out.pplx")
    assert done.exit_code == 4
    assert not (tmp_path / "out.pplx").exists()
