"""Whole searches: what is kept of them, what they begin with the next time, and how they end."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest

from dumps.errors import DumpError
from replay.engine.quirks import parse_quirk
from replay.errors import UsageError
from replay.fuzz import engine_job, load_job, shrink
from replay.fuzz.found import Folder
from replay.fuzz.fuzz import fuzz
from replay.scenario.extract import scenario_of
from replay.scenario.stage import Stage
from tests.fixture_folders import FIXTURES
from tests.incidents import read
from tests.job_replays import replayed
from tests.replay.fuzz.searches import KV_OVERFLOW, options, searched, stand_in

ABORTS = (parse_quirk("abort-after-finish"),)


def test_what_is_found_is_a_dump_with_its_report_and_a_test(tmp_path, here):
    told: list[object] = []
    outcome = fuzz(options(tmp_path, KV_OVERFLOW, quirks=ABORTS), on_found=told.append)
    [found] = outcome.found
    assert told == [found]
    assert sorted(path.name for path in found.dump.parent.iterdir()) == [
        f"{found.path.stem}.json",
        f"{found.path.stem}.pplx",
        f"test_{found.path.stem}.py",
    ]
    document = json.loads(found.document.read_text())
    assert document["identity"]["exception_type"] == "builtins.KeyError"
    assert (document["replay"]["verdict"], document["shrunk"]) == ("reproduced", True)
    assert document["started_from"] == str(KV_OVERFLOW)
    assert str(found.path.name) in found.path.with_name(f"test_{found.path.stem}.py").read_text()
    json.dumps(outcome.to_json(), allow_nan=False)


def test_the_next_search_begins_with_what_was_found_and_says_that_it_was_there(tmp_path, here):
    first = searched(tmp_path, KV_OVERFLOW, quirks=ABORTS)
    second = searched(tmp_path, KV_OVERFLOW, quirks=ABORTS, examples=1, seed=2)
    [found], [again] = first.found, second.found
    assert found.number > 1
    assert (again.number, again.before, again.identity, again.left) == (1, True, found.identity, found.left)
    assert second.exit_code == 1
    other = searched(tmp_path, KV_OVERFLOW, examples=1, seed=2)
    assert other.found == []


def test_a_dump_that_was_found_makes_its_failure_known(tmp_path, here):
    [found] = searched(tmp_path, KV_OVERFLOW, quirks=ABORTS).found
    outcome = searched(tmp_path / "next", KV_OVERFLOW, found.dump, quirks=ABORTS, examples=15)
    assert found.identity not in [one.identity for one in outcome.found]
    assert outcome.known[found.identity] == found.dump.absolute()


def test_the_same_seed_searches_the_same(tmp_path, here):
    one, two = (searched(tmp_path / name, KV_OVERFLOW, quirks=ABORTS, examples=30) for name in "ab")
    assert [(each.identity, each.number, each.change) for each in one.found] == [
        (each.identity, each.number, each.change) for each in two.found
    ]
    assert [each.dump.read_bytes() for each in one.found] == [each.dump.read_bytes() for each in two.found]


def test_what_another_search_in_the_folder_shrinks_is_left_to_it(tmp_path, here):
    with Folder(tmp_path / "found").alone(lambda: True) as alone:
        assert alone
        cut = fuzz(options(tmp_path, KV_OVERFLOW, quirks=ABORTS, time_s=100.0), clock=Clock())
        [found] = cut.found
        assert (found.shrunk, found.note) == (False, "not shrunk: the same command goes on with it")
    [whole] = searched(tmp_path, KV_OVERFLOW, quirks=ABORTS, examples=1).found
    assert (whole.before, whole.shrunk) == (True, True)


def test_where_nothing_can_be_kept_is_said_before_the_search(tmp_path):
    (tmp_path / "found").write_text("precious")
    with pytest.raises(UsageError, match="found is no folder"):
        fuzz(options(tmp_path, KV_OVERFLOW))
    assert (tmp_path / "found").read_text() == "precious"


def test_of_several_dumps_the_bad_one_is_named(tmp_path):
    (tmp_path / "empty.pplx").write_bytes(b"")
    with pytest.raises(DumpError, match=r"empty\.pplx: the file is empty"):
        fuzz(options(tmp_path, KV_OVERFLOW, tmp_path / "empty.pplx"))
    program = FIXTURES / "tool-hang" / "dump.pplx"
    with pytest.raises(UsageError, match=r"tool-hang/dump\.pplx: the dump is that of a program") as caught:
        fuzz(options(tmp_path, KV_OVERFLOW, program))
    assert "--target app=agent:answer" in caught.value.remedy


class Clock:
    """Goes on by a second each time that it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_the_end_of_the_time_ends_the_search_and_leaves_what_was_found(tmp_path, here):
    outcome = fuzz(options(tmp_path, KV_OVERFLOW, examples=10_000, time_s=20.0), clock=Clock())
    assert (outcome.complete, outcome.interrupted, outcome.notes) == (False, False, ["the time is used up"])
    assert 5 < outcome.examples < 20


def test_ctrl_c_while_a_failure_is_shrunk_leaves_it_as_it_was_met_and_later_goes_on(tmp_path, here, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shrink, "minimise", interrupted)
    cut = searched(tmp_path, KV_OVERFLOW, quirks=ABORTS)
    [found] = cut.found
    assert (cut.interrupted, cut.complete, found.shrunk) == (True, False, False)
    assert found.dump.name.endswith(".met.pplx")
    assert replayed(found.dump, None, target="schedule")["verdict"] == "reproduced"
    monkeypatch.undo()
    stand_in(monkeypatch)
    [whole] = searched(tmp_path, KV_OVERFLOW, quirks=ABORTS, examples=1).found
    assert (whole.before, whole.shrunk) == (True, True)
    assert not found.met.exists()


def test_a_dump_of_what_was_made_up_says_so(tmp_path, here):
    state, _ = read(KV_OVERFLOW)
    job = {
        "dump": str(KV_OVERFLOW),
        "target": "schedule",
        "scenario": scenario_of(state).to_json(),
        "wanted": {"kind": "silent-truncation", "invariant": "kv-pool-exhausted", "message": TRUNCATED},
        "change": "one block less",
    }
    path = tmp_path / "made-up.pplx"
    path.write_bytes(b64decode(engine_job.run(job, lambda event: None)["dump"]))
    made, _ = read(path)
    notes = {entry.path: entry.note for entry in made.ledger}
    assert "made up by pplx-replay fuzz" in notes["requests"]
    assert "one block less" in notes["requests"]
    assert replayed(path, None, target="schedule")["verdict"] == "reproduced"


TRUNCATED = "answer cut after <n> tokens: kv-pool-exhausted"


def test_a_bug_of_ours_is_told_apart_from_failures_of_a_service(tmp_path, here, monkeypatch):
    """A scheduler that keeps a block of whoever leaves."""
    leave = Stage._abort

    def keeps_a_block(stage: Stage, request, cause) -> None:
        if request.blocks:
            stage.scheduler.pool.share(request.blocks[:1])
        leave(stage, request, cause)

    monkeypatch.setattr(Stage, "_abort", keeps_a_block)
    outcome = searched(tmp_path, KV_OVERFLOW, examples=60)
    assert outcome.exit_code == 70
    broken = next(one for one in outcome.broken if one.violation.rule == "invariants")
    assert "reference counts differ" in broken.violation.message
    assert json.loads(broken.evidence.read_text())["visits"]


def test_what_cannot_be_is_said_before_anything_is_tried(tmp_path):
    for changes, said in (
        ({"target": "rocket"}, "target: wants"),
        ({"model": Path("m")}, "change nothing in --target schedule"),
        ({"app_path": ("src",)}, "are for --target app="),
        ({"quirks": ABORTS, "target": "load"}, "--quirk changes nothing in --target load"),
        ({"quirks": (parse_quirk("kv-bit-flip:request=0,layer=0,position=0,after_step=0"),)}, "spoils the cache"),
    ):
        with pytest.raises(UsageError, match=said):
            searched(tmp_path, KV_OVERFLOW, **changes)
    broken = tmp_path / "broken.pplx"
    broken.write_bytes(b"PPLX")
    with pytest.raises(DumpError):
        searched(tmp_path, broken)


# Target load


def test_damaged_and_forged_files_give_errors_of_ours_or_valid_states(tmp_path, here):
    outcome = searched(tmp_path, KV_OVERFLOW, FIXTURES / "nan-block" / "dump.pplx", target="load", examples=250)
    assert (outcome.found, outcome.broken, outcome.lost, outcome.exit_code) == ([], [], 0, 0)
    assert outcome.examples > 150


def test_a_reader_that_falls_over_is_found_with_the_smallest_damage(tmp_path, here, monkeypatch):
    read_file = load_job.Content.read.__func__  # type: ignore[attr-defined]

    def fragile(cls: type[load_job.Content], path: Path, *, salvage: bool = False) -> load_job.Content:
        if path.read_bytes()[:4] != b"PPLX":
            raise IndexError("list index out of range")
        content: load_job.Content = read_file(cls, path, salvage=salvage)
        return content

    monkeypatch.setattr(load_job.Content, "read", classmethod(fragile))
    outcome = searched(tmp_path, KV_OVERFLOW, target="load", examples=300)
    reader = next(broken for broken in outcome.broken if broken.violation.rule == "reader")
    data, original = reader.evidence.read_bytes(), KV_OVERFLOW.read_bytes()
    assert abs(len(data) - len(original)) <= 16 or len(data) < 4
    assert outcome.exit_code == 70
