from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dumps.ledger import record
from dumps.record.image import read_ring
from dumps.record.recorder import RecordLevel
from dumps.record.recover import recover as recover_ring
from dumps.record.state import state_from_ring
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.cli.run import run as run_command
from replay.cli.state_recover import recover
from tests.flight import Flight, make_config, make_recorder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(recover, [str(argument) for argument in arguments])


def dead_ring(path: Path, *, seed: int = 0, level: RecordLevel = RecordLevel.TOKENS) -> Flight:
    """A ring as a dead process leaves it: not closed, and its writer is nobody who runs now."""
    config = make_config()
    flight = Flight(make_recorder(path, config, level=level), config, seed=seed)
    flight.fly(15)
    flight.plan()
    bury(path)
    return flight


def bury(path: Path) -> None:
    """Put another start time into the header, as if its pid had been given to this process later."""
    header = read_ring(path).header
    writer = replace(header.writer, start_ticks=header.writer.start_ticks - 1)
    with path.open("r+b") as file:
        file.write(replace(header, writer=writer).pack())


def test_a_ring_becomes_a_dump_and_says_what_is_in_it(tmp_path):
    flight = dead_ring(tmp_path / "a.ring")
    done = run(tmp_path / "a.ring", "-o", tmp_path / "out.pplx")
    assert done.exit_code == 0, done.output
    assert "process-death" in done.stdout
    assert "the last one unfinished" in done.stdout
    assert "every target can replay it" in done.stdout
    with open_dump(tmp_path / "out.pplx") as dump:
        flight.check(dump.state)


def test_json(tmp_path):
    flight = dead_ring(tmp_path / "a.ring", level=RecordLevel.SHAPE)
    done = run(tmp_path / "a.ring", "--json")
    document = json.loads(done.stdout)
    assert Path(document["dump"]) == tmp_path / f"{document['id']}.pplx"
    assert Path(document["dump"]).exists()
    assert document["reason"] == "process-death"
    assert document["targets"] == ["schedule"]
    assert document["steps"]["last"] == flight.begins[-1].index
    assert document["requests"]["live"] == len(flight.scheduler.running) + len(flight.scheduler.waiting)
    assert "requests[].prompt_token_ids" in {e["path"] for e in document["missing"] if e["grade"] == "absent"}


def test_a_ring_that_is_written_is_refused_without_force(tmp_path):
    config = make_config()
    Flight(make_recorder(tmp_path / "a.ring", config), config).fly(5)
    refused = run(tmp_path / "a.ring")
    assert refused.exit_code == 4
    assert "--force" in refused.stderr
    assert run(tmp_path / "a.ring", "--force").exit_code == 0


@pytest.mark.parametrize("name", ["none.ring", "text.ring", "empty.ring"])
def test_a_bad_file_is_4(tmp_path, name):
    (tmp_path / "text.ring").write_text("PPLXRING" * 1000)
    (tmp_path / "empty.ring").write_text("")
    done = run(tmp_path / name)
    assert done.exit_code == 4
    assert name in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.ring", "text.ring"]


def test_a_torn_dump_is_sealed_again(tmp_path):
    dead_ring(tmp_path / "a.ring")
    whole = recover_ring(tmp_path / "a.ring", tmp_path / "whole.pplx")
    assert run(whole).exit_code == 4
    torn = tmp_path / "torn.pplx"
    torn.write_bytes(whole.read_bytes()[:-20])
    done = run(torn)
    assert done.exit_code == 0, done.output
    assert "of the torn dump" in done.stdout
    with open_dump(tmp_path / "torn-recovered.pplx") as dump, open_dump(whole) as original:
        assert dump.state.steps == original.state.steps


def test_a_folder_recovers_the_dead_and_leaves_the_rest(tmp_path):
    dead_ring(tmp_path / "dead.ring")
    config = make_config()
    make_recorder(tmp_path / "alive.ring", config)
    make_recorder(tmp_path / "clean.ring", config).close(clean=True)
    (tmp_path / "noise.ring").write_bytes(b"noise")
    (tmp_path / "out").mkdir()

    done = run(tmp_path, "-o", tmp_path / "out", "--json")

    assert done.exit_code == 4  # for the noise
    rows = {Path(row["source"]).name: row for row in json.loads(done.stdout)["rings"]}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "alive.ring": "skipped",
        "clean.ring": "skipped",
        "dead.ring": "recovered",
        "noise.ring": "failed",
    }
    assert [path.name for path in (tmp_path / "out").iterdir()] == [Path(rows["dead.ring"]["dump"]).name]
    (tmp_path / "noise.ring").unlink()
    again = run(tmp_path, "-o", tmp_path / "out")
    assert again.exit_code == 0
    assert "exists already" in again.stdout


def test_a_folder_without_rings(tmp_path):
    assert "no flight recorder's file" in run(tmp_path).stdout
    assert run(tmp_path, "-o", tmp_path / "file.pplx").exit_code == 2


def test_control_characters_of_a_ring_never_reach_the_terminal(tmp_path):
    flight = dead_ring(tmp_path / "a.ring")
    flight.recorder.failure({"kind": "exception", "message": "\x1b[31mred\u202e"})
    bury(tmp_path / "a.ring")
    done = run(tmp_path / "a.ring")
    assert "\\x1b[31mred\\u202e" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_failure_of_which_the_living_server_had_written_a_dump_is_said_to_have_one(tmp_path):
    flight = dead_ring(tmp_path / "a.ring")
    flight.recorder.failure({"kind": "exception", "message": "boom", "step": 3, "time_ns": 4711})
    state = state_from_ring(read_ring(tmp_path / "a.ring"), reason="exception")
    record(state, "threads", pb.OBSERVED)
    write_dump(tmp_path / "written.pplx", state)
    for name, change in (("other-time", {"time_ns": 4712}), ("other-kind", {"kind": "stall"})):
        other = pb.RuntimeState()
        other.CopyFrom(state)
        for key, value in change.items():
            setattr(other.failures[-1], key, value)
        write_dump(tmp_path / f"{name}.pplx", other)
    (tmp_path / "noise.pplx").write_bytes(b"noise")
    bury(tmp_path / "a.ring")
    done = run(tmp_path / "a.ring", "-o", tmp_path / "out.pplx")
    line = f"written    the server had written a dump of this failure: {tmp_path / 'written.pplx'}"
    assert [shown for shown in done.stdout.splitlines() if shown.startswith("written")] == [line]
    # A second recovery is told of the server's dump only, not of the first one.
    again = json.loads(run(tmp_path / "a.ring", "-o", tmp_path / "again.pplx", "--json").stdout)
    assert again["written_before"] == [str(tmp_path / "written.pplx")]


def test_a_full_disk_leaves_no_half_dump_that_blocks_the_next_try(tmp_path):
    dead_ring(tmp_path / "a.ring")
    code = "from replay.cli.state_recover import recover; recover.main()"
    command = [sys.executable, "-c", code, tmp_path / "a.ring"]
    done = subprocess.run(command, preexec_fn=small_files_only, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.ring"]
    assert run(tmp_path / "a.ring").exit_code == 0


def small_files_only() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    result = run(tmp_path / "pipe", "--json")
    assert result.exit_code == 4
    assert "not a regular file" in json.loads(result.stdout)["error"]["message"]


def test_a_torn_dump_of_a_program_is_told_in_its_own_words(tmp_path):
    state = pb.RuntimeState()
    state.manifest.id, state.manifest.reason, state.manifest.record_level = "0123456789abcdef", "exception", "full"
    state.failures.add(kind="exception", exception_type="ValueError", message="x" * 4000, step=3)
    for number in range(40):
        state.exchanges.add(id=f"x{number}", direction="out", framing="wire", method="GET", url="http://h/" + "u" * 200)
    state.program.entry, state.program.kind = "agent:main", "block"
    for number in range(2000):
        state.entropy.add(source="urandom", size=16, data=number.to_bytes(16, "big"))
    write_dump(tmp_path / "whole.pplx", state)
    data = (tmp_path / "whole.pplx").read_bytes()
    (tmp_path / "late.pplx").write_bytes(data[:-2000])
    done = run(tmp_path / "late.pplx")
    assert done.exit_code == 0, done.output
    assert "program    agent:main" in done.stdout
    assert "world      40 requests, 0 tool calls, 0 file calls" in done.stdout
    assert "app=MODULE:CALLABLE" in done.stdout
    assert "steps" not in done.stdout
    early = data.index(b"agent:main") - 10
    (tmp_path / "early.pplx").write_bytes(data[:early])
    done = run(tmp_path / "early.pplx", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["program"]["entry"], document["targets"]) == (None, [])
    assert document["program"]["exchanges"] > 0
    replayed = CliRunner().invoke(
        run_command, [str(tmp_path / "early-recovered.pplx"), "--target", "app=agent:main", "--json"]
    )
    assert "rest of a torn file" in replayed.stdout
    assert "engine" not in json.loads(replayed.stdout)["findings"][0]["message"]
