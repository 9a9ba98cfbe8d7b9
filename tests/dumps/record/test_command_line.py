"""A command line as a dump holds it."""

from __future__ import annotations

import sys
import tempfile

import pytest

from dumps.record.command_line import MAX_BYTES, hides_a_secret, without_secrets
from dumps.record.program import recording
from dumps.schema import state_pb2 as pb
from tests.small_programs import state_of


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["agent.py", "--question", "Where to?"], ["agent.py", "--question", "Where to?"]),
        (["a", "--api-key", "abc", "--more"], ["a", "--api-key", "REMOVED", "--more"]),
        (["a", "--api-key", "--verbose", "b"], ["a", "--api-key", "--verbose", "b"]),
        (["a", "--token=abc"], ["a", "--token=REMOVED"]),
        (["a", "sk-aaaabbbbccccddddeeee"], ["a", "REMOVED"]),
        (["a", "\udc80"], ["a", "\\udc80"]),
        (["a", "b" * MAX_BYTES], []),
    ],
)
def test_secrets_are_removed_and_nothing_else(given, kept):
    assert without_secrets(given) == kept
    assert hides_a_secret(kept) == ("REMOVED" in "".join(kept))


def recorded(folder, level) -> pb.RuntimeState:
    with recording(folder, level=level) as rec:
        path = rec.dump()
    assert path is not None
    return state_of(path)


def test_a_recording_has_the_command_line_that_it_began_with(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["agent.py", "--fast"])
    with recording(tmp_path, level="full") as rec:
        sys.argv.clear()
        path = rec.dump()
    assert path is not None
    assert list(state_of(path).program.argv) == ["agent.py", "--fast"]


def test_below_full_it_has_none_and_no_folder(tmp_path):
    tempfile.gettempdir()
    program = recorded(tmp_path, "shape").program
    assert (list(program.argv), program.temporary_folder) == ([], "")
    assert program.parent_pid


def test_the_folder_of_temporary_files_is_noted_where_the_program_knows_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert recorded(tmp_path, "full").program.temporary_folder == str(tmp_path)


def test_it_is_not_looked_for_where_the_program_has_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert recorded(tmp_path, "full").program.temporary_folder == ""
    assert tempfile.tempdir is None


def test_looking_for_it_draws_nothing_that_a_replay_would_have_to_draw(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    with recording(tmp_path / "dumps", level="full") as rec:
        name = tempfile.mktemp()
        path = rec.dump()
    assert path is not None
    state = state_of(path)
    assert name.startswith(state.program.temporary_folder)
    assert [draw.source for draw in state.entropy if draw.source == "random.seed"] == ["random.seed"]
