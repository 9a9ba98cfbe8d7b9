from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replay.isolate.folders import PREFIX, OwnFolder, sweep

ROOT = Path(__file__).resolve().parents[3]
KILLED = """
import os, signal
from pathlib import Path
from replay.isolate.folders import OwnFolder
folder = OwnFolder()
(Path(folder.path) / "deep").mkdir()
(Path(folder.path) / "deep" / "file").write_text("of the replay")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def age(folder: Path) -> None:
    os.utime(folder, (0, 0))


def test_what_a_killed_supervisor_left_goes_with_the_next_sweep(root: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(root)}
    subprocess.run([sys.executable, "-c", KILLED], env=env, timeout=30)
    (left,) = root.iterdir()
    assert sweep() == 0, "it may be younger than its lock"
    age(left)
    assert sweep() == 1
    assert list(root.iterdir()) == []


def test_a_folder_whose_supervisor_lives_stays(root: Path) -> None:
    folder = OwnFolder()
    age(Path(folder.path))
    assert sweep() == 0
    folder.remove()
    folder.remove()
    assert list(root.iterdir()) == []


def test_links_and_files_of_that_name_stay(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (root / f"{PREFIX}link").symlink_to(other)
    (root / f"{PREFIX}file").touch()
    (root / f"{PREFIX}open").mkdir(mode=0o755)
    age(other)
    age(root / f"{PREFIX}open")
    assert sweep() == 0
    assert len(list(root.iterdir())) == 3
    assert other.exists()
