"""A program is replayed from another folder than it was recorded in: its files keep their recorded names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_programs import SmallPrograms

FILES = """
    import tempfile
    from pathlib import Path

    def main(absolute):
        with tempfile.TemporaryDirectory(dir=absolute) as folder:
            kept = Path(folder, "kept")
            kept.write_text((Path(__file__).parent / "limits.json").read_text())
            raise ValueError(kept.read_text())
"""


@pytest.mark.parametrize("there", ["elsewhere", "above", "root"])
def test_paths_above_and_beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    """Found with the replay's folder above an absolute path: `diverged`, since the path became a relative one."""
    folders = {"elsewhere": tmp_path / "elsewhere", "above": tmp_path, "root": Path("/")}
    for name in ("program", "elsewhere", "scratch"):
        (tmp_path / name).mkdir()
    programs = SmallPrograms(tmp_path / "program")
    (programs.folder / "limits.json").write_text("recorded")
    name = programs.write(FILES)
    monkeypatch.chdir(programs.folder)
    dump = programs.record(name, absolute=str(tmp_path / "scratch"))
    (programs.folder / "limits.json").write_text("of today")
    monkeypatch.chdir(folders[there])
    report = programs.replay(dump, f"{name}:main").report
    assert report is not None
    assert report["verdict"] == "reproduced", report["findings"]
    assert report["failure"]["message"] == "recorded"
