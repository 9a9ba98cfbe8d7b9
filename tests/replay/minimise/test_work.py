"""The folder of a search: whose it is, what a kill leaves of it, and that one process has it at a time."""

from __future__ import annotations

import contextlib
import json

import pytest

from replay.errors import UsageError
from replay.minimise.work import Work, work_folder
from replay.scenario.change import without
from tests.replay.minimise.runs import leak

OF = {"dump": "abc", "target": "schedule"}


def opened(folder, header=OF, **options):
    return contextlib.closing(Work(folder, header, **options))


def test_another_process_goes_on_with_what_was_tried(tmp_path):
    with opened(tmp_path / "work") as work:
        work.tried("schedule 1", {"shows": True, "steps": 3})
        work.improve(leak())
    with opened(tmp_path / "work") as again:
        assert again.resumed
        assert again.trials == {"schedule 1": {"shows": True, "steps": 3}}
        assert again.best == leak()


def test_what_a_kill_cut_short_is_left_out_and_the_next_line_is_whole(tmp_path):
    with opened(tmp_path / "work") as work:
        work.tried("a", {"shows": True})
    with (tmp_path / "work" / "trials.jsonl").open("ab") as file:
        file.write(b'["b", {"sho')
    with opened(tmp_path / "work") as again:
        assert list(again.trials) == ["a"]
        again.tried("c", {"shows": False})
    with opened(tmp_path / "work") as third:
        assert list(third.trials) == ["a", "c"]


def test_of_another_dump_or_on_demand_it_begins_afresh(tmp_path):
    for header, options in (({**OF, "dump": "other"}, {}), (OF, {"resume": False})):
        with opened(tmp_path / "work") as work:
            work.tried("a", {"shows": True})
            work.improve(leak())
        with opened(tmp_path / "work", header, **options) as again:
            assert (again.trials, again.best, again.resumed) == ({}, None, False)


def test_going_on_can_be_insisted_on(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        Work(tmp_path / "work", OF, resume=True)
    Work(tmp_path / "work", OF).close()
    with pytest.raises(UsageError, match="of another dump or other options"):
        Work(tmp_path / "work", {**OF, "dump": "other"}, resume=True)


def test_a_folder_that_is_not_ours_stays(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="no checkpoint of ours"):
        Work(tmp_path / "work", OF)
    assert (tmp_path / "work" / "thesis.txt").read_text() == "mine"


def test_one_process_has_it_at_a_time(tmp_path):
    with opened(tmp_path / "work"), pytest.raises(UsageError, match="another process works in"):
        Work(tmp_path / "work", OF)
    Work(tmp_path / "work", OF).close()


@pytest.mark.parametrize("options", [{}, {"resume": False}])
def test_another_search_takes_nothing_from_the_one_that_is_at_work(tmp_path, options):
    with opened(tmp_path / "work") as work:
        work.tried("a", {"shows": True})
        with pytest.raises(UsageError, match="another process works in"):
            Work(tmp_path / "work", {**OF, "dump": "other"}, **options)
        work.improve(leak())
    with opened(tmp_path / "work") as again:
        assert (list(again.trials), again.best) == (["a"], leak())


@pytest.mark.parametrize("left", ["of.json.part", "trials.jsonl", "best.json", "trial.pplx", "result.pplx.part"])
def test_whatever_a_kill_left_is_ours(tmp_path, left):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / left).write_text("{")
    with opened(tmp_path / "work") as work:
        assert (work.trials, work.best) == ({}, None)
        assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["of.json", "trials.jsonl"]


def test_the_best_is_the_smallest(tmp_path):
    small = without(leak(), {"r0"})
    with opened(tmp_path / "work") as work:
        work.improve(small)
        work.improve(leak())
        assert work.best == small
    assert len(json.loads((tmp_path / "work" / "best.json").read_text())["visits"]) == len(small.visits)


def test_only_its_owner_may_look_into_it(tmp_path):
    with opened(tmp_path / "work") as work:
        work.improve(leak())
    modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "work").iterdir()}
    assert set(modes.values()) == {0}
    assert work_folder(tmp_path / "small.pplx").name == "small.pplx.work"
