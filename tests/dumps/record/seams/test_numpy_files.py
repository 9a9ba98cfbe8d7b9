"""numpy's own ways to a file, recorded and played."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams import files as recorded_files
from dumps.record.seams.log import WorldLog
from replay.runtime.files import Files


def saved_and_loaded() -> Any:
    np.save("a.npy", np.arange(5))
    np.savez("b.npz", b=np.eye(2))
    return np.load("a.npy").tolist(), np.load("b.npz")["b"].tolist()


def loaded() -> Any:
    return np.load("given.npy").tolist()


def by_parts() -> Any:
    with open("given.npy", "rb") as file:
        file.seek(128)
        first = np.fromfile(file, "<i8", 2).tolist()
        return first, np.fromfile(file, "<i8", 1, offset=8).tolist(), file.read(1)


def as_text() -> Any:
    Path("numbers.txt").write_text("1 2 3")
    return np.fromfile("numbers.txt", int, -1, " ").tolist(), np.fromfile(Path("numbers.txt"), "u1").tolist()


def written_by_c() -> Any:
    np.arange(3).tofile("c.bin")
    return os.path.getsize("c.bin"), np.fromfile("c.bin", int).tolist()


@pytest.mark.parametrize("program", [saved_and_loaded, loaded, by_parts, as_text, written_by_c])
def test_a_replay_reads_what_the_recording_read_and_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[], Any]
):
    monkeypatch.chdir(tmp_path)
    np.save("given.npy", np.arange(7))
    log = WorldLog(level=RecordLevel.FULL)
    undo = recorded_files.install(log)
    seen = program()
    undo()
    for path in tmp_path.iterdir():
        path.unlink()
    files = Files(log.syscalls)
    undo = files.install()
    try:
        assert program() == seen
    finally:
        undo()
    assert list(tmp_path.iterdir()) == []


def test_a_changed_program_reads_the_array_that_it_saved_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    log = WorldLog(level=RecordLevel.FULL)
    undo = recorded_files.install(log)
    np.save("a.npy", np.arange(5))
    np.load("a.npy")
    undo()
    Path("a.npy").unlink()
    undo = Files(log.syscalls).install()
    try:
        np.save("a.npy", np.arange(5) * 10)
        assert np.load("a.npy").tolist() == [0, 10, 20, 30, 40]
    finally:
        undo()


def test_everything_is_back_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    real = np.fromfile
    undo = recorded_files.install(WorldLog(level=RecordLevel.FULL))
    assert np.fromfile is not real
    undo()
    assert np.fromfile is real


def test_files_that_are_not_the_programs_go_to_numpy_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    np.arange(3).tofile("real.bin")
    undo = Files([], real=("real.bin",)).install()
    try:
        assert np.fromfile("real.bin", int).tolist() == [0, 1, 2]
        with pytest.raises(TypeError, match="offset"):
            np.fromfile("real.bin", int, -1, " ", offset=8)
    finally:
        undo()


def test_a_program_without_numpy_does_not_import_it():
    code = (
        "import sys\nbefore = 'numpy' in sys.modules\nfrom dumps.record.seams import numpy_files\n"
        "numpy_files.install(lambda fd: False, lambda path: False)()\nassert before or 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
