"""Listing a folder in which files end the process that opens them."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.server import describe, store
from replay.server.problems import Problem

JOBS = "tests.replay.server.describe_jobs:"


@pytest.fixture(autouse=True)
def _jobs_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def folder(tmp_path: Path, *names: str) -> store.DumpStore:
    for name in names:
        (tmp_path / f"{name}.pplx").write_text(name)
    return store.DumpStore(tmp_path)


async def test_a_file_that_kills_its_reader_is_listed_so_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "JOB_FUNCTION", JOBS + "describe")
    entries, _ = await folder(tmp_path, "a", "deadly", "c", "d").entries()
    errors = {entry["file"]: entry["error"] for entry in entries}
    assert errors["deadly.pplx"]["class"] == "WorkerDied"
    assert [errors[f"{name}.pplx"] for name in "acd"] == [None, None, None]


async def test_a_folder_full_of_them_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "JOB_FUNCTION", JOBS + "describe")
    monkeypatch.setattr(store, "MAX_WORKERS", 2)
    dumps = folder(tmp_path, "deadly1", "deadly2", "deadly3")
    entries, _ = await dumps.entries()
    assert sorted(entry["error"]["class"] for entry in entries) == ["BudgetSpent", "WorkerDied", "WorkerDied"]
    entries, _ = await dumps.entries()
    assert [entry["error"]["class"] for entry in entries] == ["WorkerDied"] * 3


async def test_one_that_ran_out_of_time_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "JOB_FUNCTION", JOBS + "describe")
    monkeypatch.setattr(store, "DESCRIBE_TIMEOUT_S", 2)
    dumps = folder(tmp_path, "slow")
    assert (await dumps.entries())[0][0]["error"]["class"] == "BudgetSpent"
    (tmp_path / "ready").touch()
    monkeypatch.setattr(store, "DESCRIBE_TIMEOUT_S", 30)
    assert (await dumps.entries())[0][0]["error"] is None


async def test_no_more_files_than_the_limit_and_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "JOB_FUNCTION", JOBS + "describe")
    monkeypatch.setattr(store, "MAX_FILES", 2)
    dumps = folder(tmp_path, "a", "b", "c")
    entries, truncated = await dumps.entries()
    assert truncated
    assert len(entries) == 2


async def test_an_id_in_a_dump_that_is_no_id_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "JOB_FUNCTION", JOBS + "describe_with_path_as_id")
    dumps = folder(tmp_path, "a")
    (entry,) = (await dumps.entries())[0]
    assert len(entry["id"]) == 16
    assert await dumps.find(entry["id"]) == tmp_path / "a.pplx"
    with pytest.raises(Problem):
        await dumps.find("../../etc/passwd")


async def test_a_folder_that_went_away_is_said_and_not_our_own_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    dumps = folder(gone)
    gone.rmdir()
    with pytest.raises(Problem) as caught:
        await dumps.entries()
    assert (caught.value.status, caught.value.body["error"]["class"]) == (503, "NoFolder")
