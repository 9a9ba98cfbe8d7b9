"""Servers that failed behind uvicorn and aiohttp's runner, asking real services; replayed with all of that gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dumps.schema.reader import open_dump
from dumps.validate import validate
from replay.isolate.program import run_program
from tests.served.recording_session import HERE, KINDS, record_all

Replay = Callable[..., dict[str, Any]]

EXPECTED = {
    ("asgi", "answer"): ("exception", "", "KeyError", "asgi_service.py:price_of", 2),
    ("asgi", "upload"): ("exception", "client-gone", "", "asgi_service.py:upload", 2),
    ("aiohttp", "answer"): ("exception", "", "KeyError", "aiohttp_service.py:price_of", 2),
    ("aiohttp", "upload"): ("exception", "", "ConnectionResetError", "aiohttp_service.py:upload", 2),
}


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    return record_all(tmp_path_factory.mktemp("served"))


@pytest.fixture
def replay(dumps: dict[tuple[str, str], Path]) -> Replay:
    def run(kind: str, failure: str, entry: str = "app", **job: Any) -> dict[str, Any]:
        target = f"app={kind}_service:{entry}"
        dump = str(dumps[kind, failure])
        result = run_program({"dump": dump, "target": target, "app_path": [str(HERE)], "answers": "recorded", **job})
        assert result.report is not None, result.error
        return result.report

    return run


def codes(report: dict[str, Any]) -> list[str]:
    return [found["code"] for found in report["findings"]]


def check(report: dict[str, Any], kind: str, failure: str) -> None:
    assert report["verdict"] == "reproduced"
    identity, location = report["signature"]["identity"], report["signature"]["location"]
    seen = (identity["kind"], identity["invariant"], identity["exception_type"], identity["frame"], location["step"])
    assert seen == EXPECTED[kind, failure]
    assert all(report["match"].values())
    assert report["world"]["exchanges"]["left_over"] == report["world"]["unrecorded"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_exception_comes_back_in_the_same_frame_and_step_twice(replay, dumps, kind):
    """Beside another request, which is in flight when the dump is made and when the failing one is over."""
    folder = dumps[kind, "answer"].parent
    written = set(folder.iterdir())
    with open_dump(dumps[kind, "answer"]) as dump:
        assert validate(dump.state) == []
        inbound = [one for one in dump.state.exchanges if one.direction == "in"]
        failing = next(one for one in inbound if one.id == dump.state.failures[-1].exchange)
        other = next(one for one in inbound if not one.HasField("ended_ns") and one.id != failing.id)
        assert other.started_ns < failing.started_ns
    report = replay(kind, "answer", repeat=2)
    check(report, kind, "answer")
    assert report["repeat"] == {"n": 2, "reproduced": 2}
    assert report["world"]["requests"] == {"recorded": 3, "asked": 3, "ended": 3}
    assert codes(report) == ["recorded-answers"]
    assert set(folder.iterdir()) == written  # the module records itself, but not in a replay


@pytest.mark.parametrize(("kind", "inferred"), [("asgi", []), ("aiohttp", ["client-gone-inferred"])])
def test_an_upload_that_its_client_cut_is_cut_again(replay, kind, inferred):
    report = replay(kind, "upload")
    check(report, kind, "upload")
    assert codes(report) == [*inferred, "recorded-answers"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_deadline_is_missed_again_and_costs_no_time(replay, kind):
    report = replay(kind, "slow")
    assert report["verdict"] == "reproduced"
    assert report["signature"]["identity"]["invariant"] == "request"
    assert report["timings"]["virtual_s"] > 1.5 > report["timings"]["step_s"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mended_handler_does_not_fail_and_another_ones_answer_is_told(replay, kind):
    report = replay(kind, "answer", "mended")
    assert report["verdict"] == "not-reproduced"
    differs = next(found for found in report["findings"] if found["code"] == "answer-differs")
    assert "/health was answered with 200; recorded: 503" in differs["message"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_nobody_recorded_is_a_divergence_that_names_it(replay, kind):
    report = replay(kind, "answer", "curious")
    assert report["verdict"] == "diverged"
    assert report["divergence"]["step"] == 1
    assert "/news?city=Faro" in report["divergence"]["replayed"]
    assert f"{kind}_service.py" in report["divergence"]["replayed"]
