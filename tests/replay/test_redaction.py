from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dumps.errors import DumpError
from dumps.redact import Redacted, claims, write_redacted
from dumps.redact import redact as redact_state
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump, open_dump
from dumps.schema.writer import write_dump
from replay import redaction
from replay.redaction import redact_file
from replay.targets.expected import own_signature
from tests.fixture_folders import FIXTURES, names

# Without --prompt one replay in a target of each kind is enough: those of inference are slow.
PROGRAMS = ("tool-hang", "tool-parse", "tool-truncated", "utf8-split")
CASES = [("kv-overflow", False), ("nan-block", False), *((name, True) for name in names() if name not in PROGRAMS)]


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_failure_of_a_program_is_not_checked_without_the_program(tmp_path: Path, name: str, prompt: bool):
    check = redact_file(FIXTURES / name / "dump.pplx", tmp_path / "out.pplx", prompt=prompt).check
    assert (check.kept, check.exit_code, check.note) == (None, 0, redaction.PROGRAM)


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_a_golden_incident_keeps_the_verdict_that_is_claimed(tmp_path: Path, name: str, prompt: bool):
    path = FIXTURES / name / "dump.pplx"
    check = redact_file(path, tmp_path / "out.pplx", prompt=prompt).check
    assert (check.kept, check.exit_code) == (True, 0)
    assert check.before == check.after is not None
    with open_dump(path) as dump:
        expected = own_signature(dump.state)
    assert expected is not None
    # With --prompt a failure that needs the model's numbers cannot come back, and nobody says so.
    if prompt and expected.identity.kind == "non-finite":
        assert not check.claimed
    if check.claimed or not prompt:
        assert check.before is not None
        assert check.before.verdict == "reproduced"
        assert check.before.identity == expected.to_json()["identity"]
    assert entries(tmp_path) == ["out.pplx"]
    assert (tmp_path / "out.pplx").stat().st_mode & 0o777 == 0o600


def test_the_failure_of_a_program_is_not_checked_and_the_way_to_do_it_is_named(tmp_path: Path):
    state = pb.RuntimeState()
    state.manifest.id, state.manifest.record_level = "0" * 16, "full"
    state.program.kind = "block"
    write_dump(tmp_path / "program.pplx", state)
    outcome = redact_file(tmp_path / "program.pplx", tmp_path / "out.pplx")
    assert outcome.check.kept is None
    assert "--target app=" in outcome.check.note
    assert outcome.written


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redaction with a defect: it loses the blocks of a step."""

    def spoilt(dump: Dump, *, prompt: bool) -> Redacted:
        redacted = redact_state(dump.state, prompt=prompt)
        redacted.state.engine.num_blocks *= 4
        redacted.state.kv.Clear()
        return redacted

    monkeypatch.setattr(redaction, "redact_dump", spoilt)


def test_a_claimed_verdict_that_is_lost_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spoil(monkeypatch)
    outcome = redact_file(FIXTURES / "kv-overflow" / "dump.pplx", tmp_path / "out.pplx", prompt=True)
    assert outcome.check.lost
    assert outcome.check.exit_code not in (0, 13)
    assert not outcome.written
    assert entries(tmp_path) == []


def test_force_keeps_a_file_whose_verdict_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spoil(monkeypatch)
    outcome = redact_file(FIXTURES / "kv-overflow" / "dump.pplx", tmp_path / "out.pplx", prompt=True, force=True)
    assert outcome.check.exit_code != 0
    assert entries(tmp_path) == ["out.pplx"]


def test_what_target_schedule_does_not_show_is_not_claimed_with_prompt(tmp_path: Path):
    with open_dump(FIXTURES / "kv-overflow" / "dump.pplx") as dump:
        state = dump.state
    state.failures[-1].kind, state.failures[-1].invariant = "exception", "memory"
    write_dump(tmp_path / "other.pplx", state)
    assert [one.kept for one in claims.claims_of(state, state, prompt=True) if one.own] == [True]
    outcome = redact_file(tmp_path / "other.pplx", tmp_path / "out.pplx", prompt=True)
    assert not outcome.check.claimed
    assert outcome.check.before is not None
    assert outcome.check.before.verdict != "reproduced"


def copy_of_fixture(folder: Path) -> Path:
    path = folder / "crash.pplx"
    shutil.copy(FIXTURES / "kv-overflow" / "dump.pplx", path)
    return path


@pytest.mark.parametrize("force", [False, True])
def test_a_dump_is_never_written_over_itself(tmp_path: Path, force: bool):
    path = copy_of_fixture(tmp_path)
    before = path.read_bytes()
    link, hard = tmp_path / "link.pplx", tmp_path / "hard.pplx"
    link.symlink_to(path)
    os.link(path, hard)
    for target in (path, link, hard):
        with pytest.raises(DumpError, match="to be redacted"):
            redact_file(path, target, check=False, force=force)
    assert path.read_bytes() == before


def test_a_folder_is_no_place_for_a_dump(tmp_path: Path):
    with pytest.raises(DumpError, match="is a folder"):
        redact_file(FIXTURES / "kv-overflow" / "dump.pplx", tmp_path, check=False, force=True)


def test_a_file_that_is_there_stays_without_force(tmp_path: Path):
    path, out = copy_of_fixture(tmp_path), tmp_path / "out.pplx"
    out.write_text("mine")
    with pytest.raises(DumpError, match="exists already"):
        redact_file(path, out, check=False)
    assert out.read_text() == "mine"
    redact_file(path, out, check=False, force=True)
    with open_dump(out) as dump:
        assert len(dump.state.steps) == 56
    assert entries(tmp_path) == ["crash.pplx", "out.pplx"]


def test_a_file_that_came_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, out = copy_of_fixture(tmp_path), tmp_path / "out.pplx"

    def late(dump: Dump, redacted: Redacted, part: Path) -> None:
        write_redacted(dump, redacted, part)
        out.write_text("mine")

    monkeypatch.setattr(redaction, "write_redacted", late)
    with pytest.raises(DumpError, match="exists already"):
        redact_file(path, out, check=False)
    assert out.read_text() == "mine"
    assert entries(tmp_path) == ["crash.pplx", "out.pplx"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(DumpError, match="is no folder"):
        redact_file(copy_of_fixture(tmp_path), tmp_path / "no" / "out.pplx", check=False)
