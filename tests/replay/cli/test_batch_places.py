"""Which files a batch takes and where reports go, when the folder or the disk is not as one would wish."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from replay.cli import batch_files
from replay.cli.batch import batch
from replay.errors import UsageError
from tests.replay.cli.test_batch import OVERFLOW, run


def names(folder: Path, **options) -> list[str]:
    places = batch_files.places([folder], **{"recursive": False, "out": None, **options})
    return [place.name.name for place in places]


@pytest.mark.parametrize("recursive", [False, True])
def test_links_in_a_circle_or_to_nothing_are_taken_and_do_not_stop_the_search(tmp_path, recursive):
    (tmp_path / "circle.pplx").symlink_to("circle.pplx")
    (tmp_path / "nothing.pplx").symlink_to("/nowhere")
    (tmp_path / "real.pplx").write_bytes(b"x")
    assert names(tmp_path, recursive=recursive) == ["circle.json", "nothing.json", "real.json"]
    with pytest.raises(UsageError, match="a link that leads nowhere"):
        names(tmp_path / "nothing.pplx")


def test_reports_of_long_names_fit_and_differ(tmp_path):
    long = "\N{SNOWMAN}" * 80 + "0123456789"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{long}.pplx").write_bytes(b"x")
    paths = [tmp_path / "a", tmp_path / "b"]
    places = batch_files.places(paths, recursive=False, out=tmp_path / "out")
    batch_files.make_folders(places)
    for place in places:
        batch_files.write_report(place, {})
    assert sorted(os.listdir(tmp_path / "out")) == sorted(place.name.name for place in places)
    assert len({place.report for place in places}) == 2
    (tmp_path / ("x" * 255)).write_bytes(b"x")
    assert names(tmp_path / ("x" * 255)) == ["x" * 250 + ".json"]


def test_a_place_that_takes_no_reports_is_refused_before_any_dump_is_replayed(tmp_path):
    (tmp_path / "a.pplx").write_bytes(OVERFLOW.read_bytes())
    (tmp_path / "reports").write_text("a file")
    done = run(tmp_path, "--target", "schedule")
    assert (done.returncode, done.stdout) == (2, "")
    assert "reports: it is a file, and not a folder" in done.stderr
    assert "--out" in done.stderr
    assert "opening" not in done.stderr
    with pytest.raises(UsageError, match="/proc/nobody"):
        batch_files.make_folders(batch_files.places([tmp_path], recursive=False, out=Path("/proc/nobody")))


def test_a_report_that_cannot_be_written_stops_no_other(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.pplx").write_bytes(OVERFLOW.read_bytes())
    write = batch_files.write_report

    def full(place, document):
        if place.name.name == "b.json":
            raise OSError(28, "No space left on device")
        write(place, document)

    monkeypatch.setattr(batch_files, "write_report", full)
    done = CliRunner().invoke(batch, [str(tmp_path), "--target", "schedule"])
    assert done.exit_code == 70
    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == ["a.json", "c.json"]
    assert "a.pplx, b.pplx, c.pplx" in done.stdout
    assert "1 reports could not be written, the first of them because: cannot write: No space left" in done.stderr


def test_the_table_names_the_first_dumps_of_many(tmp_path):
    for index in range(23):
        (tmp_path / f"{index:02}.pplx").write_bytes(b"no dump")
    done = run(tmp_path, "--target", "schedule")
    assert "18.pplx, 19.pplx and 3 more" in done.stdout
    assert done.returncode == 4
