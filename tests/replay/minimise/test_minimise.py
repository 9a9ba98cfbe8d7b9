"""From a dump to a minimal one, with workers and all: the order of its parts, and what is told of the end."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.errors import UsageError
from replay.minimise import minimise as module
from replay.minimise.minimise import minimise
from replay.minimise.options import NotReproduced, Options, ResultNotReproduced
from replay.minimise.pieces import Content
from replay.scenario.extract import scenario_of
from replay.targets.expected import own_signature
from tests.fixture_folders import FIXTURES
from tests.incidents import incident
from tests.job_replays import replayed
from tests.replay.minimise.runs import Here, dump_of, leak
from tests.served.recording_session import HERE, record_all
from tests.small_programs import SmallPrograms, says, state_of

OVERFLOW = FIXTURES / "kv-overflow" / "dump.pplx"
NAN = FIXTURES / "nan-block" / "dump.pplx"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials in this process; the replays that check the dumps stay in workers."""
    monkeypatch.setattr(module, "Trials", Here)


def options(dump: Path, out: Path, **changes: Any) -> Options:
    return Options(dump=dump, out=out, **{"target": "schedule", "repeat": 1, "time_s": None, **changes})


def identity_in(path: Path) -> Any:
    with open_dump(path) as dump:
        signature = own_signature(dump.state)
        assert signature is not None
        return signature.identity


def digest_of(path: Path) -> str:
    with open_dump(path) as dump:
        return scenario_of(dump.state).digest


def test_a_pool_that_overflowed_without_weights(tmp_path):
    out = tmp_path / "small.pplx"
    outcome = minimise(options(OVERFLOW, out, repeat=2))
    assert outcome.summary == "1 request, 3 tokens, 1 block; needs policy truncate"
    assert (outcome.complete, outcome.already_minimal, outcome.confirmed) == (True, False, "schedule")
    assert outcome.report["repeat"] == {"n": 2, "reproduced": 2}
    assert identity_in(out) == identity_in(OVERFLOW)
    report = replayed(out, None, target="inference")  # its answers are not the model's, and part from them in vain
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "tokens-absent")
    assert "--target schedule" in report["findings"][-1]["remedy"]
    assert outcome.before["requests"] == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.pplx", "small.pplx.others", "test_small.py"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            str(tmp_path / "test_small.py"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_minimised_again_it_is_the_same_file(tmp_path, here):
    made = dump_of(leak(), tmp_path / "leak.pplx")
    first = minimise(options(made, tmp_path / "small.pplx"))
    again = minimise(options(tmp_path / "small.pplx", tmp_path / "again.pplx"))
    assert not first.already_minimal
    assert again.already_minimal
    assert (tmp_path / "small.pplx").read_bytes() == (tmp_path / "again.pplx").read_bytes()
    assert digest_of(tmp_path / "small.pplx") == digest_of(tmp_path / "again.pplx")


@pytest.mark.long
def test_what_shows_on_the_model_alone_is_searched_there(tmp_path):
    out = tmp_path / "small.pplx"
    outcome = minimise(options(NAN, out, target="inference", time_s=240))
    assert (outcome.searched, outcome.confirmed) == (("inference",), "inference")
    assert outcome.after["requests"] == 1
    assert outcome.after["tokens"] <= 4
    assert "quirk kv-bit-flip" in outcome.needs
    assert identity_in(out) == identity_in(NAN)
    assert '"--model"' in (tmp_path / "test_small.py").read_text()


@pytest.mark.long
def test_what_needs_the_contents_of_its_cache_loses_other_pieces_only(tmp_path):
    state, sections = incident("nan-block")
    del state.quirks[:]  # what damaged it is not known
    for number in range(3):
        state.logs.add(message=f"line {number}")
    write_dump(tmp_path / "dump.pplx", state, sections)
    outcome = minimise(
        options(
            tmp_path / "dump.pplx", tmp_path / "small.pplx", target="inference", model=FIXTURES / "nan-block" / "model"
        )
    )
    assert "section kv-contents" not in outcome.removed
    assert outcome.removed["log records"] == 3
    assert any("nothing but pieces of the dump" in note.lower() for note in outcome.notes)
    assert outcome.after["steps"] == len(state.steps)


def test_a_program_loses_what_its_failure_does_not_need(tmp_path):
    programs = SmallPrograms(tmp_path)
    name = programs.write(
        """
        def main(url):
            return int(get(url + "/number"))
        """
    )
    recorded, _ = programs.record_served(name, says("no number"))
    state = state_of(recorded)
    for name_of_list in ("threads", "exceptions", "syscalls", "entropy", "descriptors"):
        state.ClearField(name_of_list)
    for number in range(4):
        state.logs.add(message=f"line {number}")
    write_dump(tmp_path / "dump.pplx", state)
    target = {"target": f"app={name}:main", "app_path": (str(tmp_path),), "answers": "recorded"}
    outcome = minimise(options(tmp_path / "dump.pplx", tmp_path / "small.pplx", **target))
    assert outcome.removed["log records"] == 4
    assert "exchanges" not in outcome.removed
    assert "1 exchange" in outcome.left
    assert outcome.confirmed == f"app={name}:main"
    assert '"--app-path", str(HERE / ".")' in outcome.test.read_text()


@pytest.mark.long
def test_a_server_loses_the_requests_that_its_failure_does_not_need(tmp_path):
    dump = record_all(tmp_path)["asgi", "answer"]
    target = {"target": "app=asgi_service:app", "app_path": (str(HERE),), "answers": "recorded"}
    outcome = minimise(options(dump, tmp_path / "small.pplx", **target))
    with open_dump(outcome.out) as small:
        (inbound,) = [one.id for one in small.state.exchanges if one.direction == "in"]
        assert inbound == small.state.failures[-1].exchange
    assert identity_in(outcome.out) == identity_in(dump)


@pytest.mark.long  # tests/replay/cli/test_minimise.py presses the keys
def test_ctrl_c_keeps_the_best_and_the_same_options_go_on(tmp_path, here):
    made = dump_of(leak(), tmp_path / "leak.pplx")
    whole = minimise(options(made, tmp_path / "whole.pplx"))

    pressed = False

    def interrupt(what: str, left: str, trials: int) -> None:
        nonlocal pressed
        if trials == 14 and not pressed:
            pressed = True
            raise KeyboardInterrupt

    out = tmp_path / "small.pplx"
    cut = minimise(options(made, out), on_stage=interrupt)
    assert (cut.complete, cut.interrupted, cut.needs) == (False, True, [])
    assert cut.after["requests"] == 2
    assert cut.after["tokens"] > whole.after["tokens"]
    assert cut.work == tmp_path / "small.pplx.work"
    on = minimise(options(made, out))
    assert (on.complete, on.resumed) == (True, True)
    assert on.counts.played == whole.counts.played - cut.counts.played
    assert out.read_bytes() == (tmp_path / "whole.pplx").read_bytes()
    assert not (tmp_path / "small.pplx.work").exists()


def test_the_end_of_the_time_keeps_the_best(tmp_path, here):
    made = dump_of(leak(), tmp_path / "leak.pplx")
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.1
        return now

    outcome = minimise(options(made, tmp_path / "small.pplx", time_s=3.0), clock=clock)
    assert (outcome.complete, outcome.interrupted) == (False, False)
    assert outcome.after["requests"] < outcome.before["requests"]
    with pytest.raises(UsageError, match="before anything could be tried"):
        minimise(options(made, tmp_path / "none.pplx", time_s=0.01), clock=clock)


def test_a_dump_that_does_not_reproduce_is_refused(tmp_path):
    made = dump_of(leak(), tmp_path / "leak.pplx")
    state = state_of(made)
    del state.quirks[:]
    write_dump(tmp_path / "other.pplx", state)
    with pytest.raises(NotReproduced, match="does not reproduce 1 of 1") as caught:
        minimise(options(tmp_path / "other.pplx", tmp_path / "small.pplx"))
    assert caught.value.exit_code in (10, 11, 12)
    assert not (tmp_path / "small.pplx.work").exists()


def test_a_result_that_does_not_come_back_is_a_loud_failure(tmp_path, here, monkeypatch):
    made = dump_of(leak(), tmp_path / "leak.pplx")
    monkeypatch.setattr(Content, "write", functools.partialmethod(_without_quirks, Content.write))
    with pytest.raises(ResultNotReproduced, match="the minimised dump does not reproduce"):
        minimise(options(made, tmp_path / "small.pplx"))
    assert not (tmp_path / "small.pplx").exists()


def _without_quirks(content: Any, write: Any, path: Path) -> None:
    del content.state.quirks[:]
    write(content, path)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("leak.pplx", {}, "names the dump itself"),
        ("there.pplx", {}, "there.pplx exists"),
        ("mine.pplx", {}, "test_mine.py exists"),
        ("nowhere/small.pplx", {}, "is no folder"),
        ("small", {}, "wants a file name"),
        ("small.py", {}, "wants a file name"),
        (".", {}, "wants a file name"),
        ("..", {}, "wants a file name"),
        ("folder.pplx", {"force": True}, "folder.pplx is a folder"),
        ("below.pplx", {"force": True}, "test_below.py is a folder"),
        ("small.pplx", {"target": "rocket"}, "target: wants"),
        ("small.pplx", {"model": Path("m")}, "change nothing in --target schedule"),
        ("small.pplx", {"app_path": ("src",)}, "are for --target app="),
        ("small.pplx", {"resume": True}, "nothing to go on with"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_tried(tmp_path, name, changes, said):
    made = dump_of(leak(), tmp_path / "leak.pplx")
    (tmp_path / "there.pplx").write_text("precious")
    (tmp_path / "folder.pplx").mkdir()
    (tmp_path / "test_below.py").mkdir()
    (tmp_path / "test_mine.py").write_text("precious")
    with pytest.raises(UsageError, match=said):
        minimise(options(made, tmp_path / name, **changes))
    assert (tmp_path / "there.pplx").read_text() == (tmp_path / "test_mine.py").read_text() == "precious"


def test_the_dump_of_a_program_is_told_how_to_be_minimised(tmp_path):
    with pytest.raises(UsageError, match="that of a program") as caught:
        minimise(options(FIXTURES / "tool-hang" / "dump.pplx", tmp_path / "small.pplx", target="auto"))
    assert "pplx-replay minimise DUMP --target app=agent:answer" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_the_document_is_json(tmp_path, here):
    made = dump_of(leak(), tmp_path / "leak.pplx")
    document = json.loads(json.dumps(minimise(options(made, tmp_path / "small.pplx")).to_json(), allow_nan=False))
    assert document["left"].startswith("2 requests, 7 tokens, 3 blocks; needs prefix cache")
    assert document["verdict"] == "reproduced"
    assert document["trials"]["played"] > 0
