"""The golden incidents: what else holds of them. Their replays are tests by themselves, see `replay.pytest_plugin`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import aiohttp
import pytest

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.validate import validate
from replay.fixtures.check import Status, check_replay
from replay.targets.expected import expected_signature, own_signature
from tests.capture import INCIDENTS
from tests.fixture_folders import FIXTURES, load, names
from tests.replay.server.server_process import started

CONTRADICTIONS = {"prefix-leak": {"prefix.unwritten"}, "logit-bias-oov": {"requests.unchecked-id"}}
"""The rules that a record breaks because that is what went wrong in its engine."""


def run(name: str, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Exit code and report of ``pplx-replay run --json`` as a person calls it, once for all tests that look at it."""
    arguments: list[str] = []
    for key, value in options.items():
        if key == "set":
            arguments += [part for k, v in value.items() for part in ("--set", f"{k}={v}")]
        else:
            arguments += [f"--{key}", str(value)]
    done = _run(str(FIXTURES / name / "dump.pplx"), *arguments)
    return done.returncode, json.loads(done.stdout)


@cache
def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "replay.cli", "replay", "run", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_thirteen_incidents_are_there():
    assert len(INCIDENTS) == 13
    assert set(INCIDENTS) == set(names())


def test_their_replays_are_tests_of_this_suite():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "fixtures"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FIXTURES.parent)
    assert done.returncode == 0, f"install this package again, for its pytest plugin: {done.stdout}"
    wanted = {f"fixtures/{name}/fixture.json::{one.label}" for name in names() for one in load(name).replays}
    assert wanted <= set(done.stdout.splitlines())


@pytest.mark.parametrize("name", names())
def test_the_dump_is_sound_small_and_carries_the_signature(name):
    path = FIXTURES / name / "dump.pplx"
    assert path.stat().st_size < 300_000
    with open_dump(path) as dump:
        dump.verify()
        assert {problem.rule for problem in validate(dump.state)} == CONTRADICTIONS.get(name, set())
        signature = own_signature(dump.state)
    assert signature == load(name).signature


@pytest.mark.parametrize("name", names())
def test_a_dump_and_its_fixture_file_name_the_same_failure_to_look_for(name):
    for file in ("dump.pplx", "fixture.json"):
        named = str(FIXTURES / name / file)
        assert expected_signature(pb.RuntimeState(), named) == load(name).signature


@pytest.mark.parametrize(
    "name",
    [pytest.param("kv-overflow", marks=pytest.mark.model), "nan-block", "kv-wait"],  # one of each kind
)
async def test_the_replay_server_gives_the_same_report(name):
    options = dict(load(name).replays[0].options)
    _, expected = run(name, options)
    command = ["-m", "replay.cli", "replay", "serve", "--port", "0", "--dumps", str(FIXTURES / name), "--json"]
    with started(command, FIXTURES / name) as server:
        url, body = f"{server.url}/debug/replay", {"dump": expected["dump"]["id"], "options": options}
        async with aiohttp.ClientSession(headers=server.headers) as client, client.post(url, json=body) as answer:
            report = await answer.json()
            assert (answer.status, answer.headers["X-PPLX-Exit-Code"]) == (200, "0")
    assert report.pop("timings").keys() == expected.pop("timings").keys()
    assert report == expected


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize("name", ["tool-parse", "tool-truncated"])
def test_the_real_model_writes_the_same_tool_call_again(name):
    """Their fixtures play the recorded answer, since these weights are in no fixture."""
    one = load(name).replays[0]
    options = {key: value for key, value in one.options.items() if key != "answers"}
    outcome = check_replay(load(name), replace(one, options=options))
    assert outcome.status is Status.PASSED, outcome.problems
    assert outcome.report is not None
    assert outcome.report["world"]["model_answers"] == 1
    assert outcome.report["findings"] == []


def test_the_place_of_the_nan_is_derived_and_not_copied():
    """The dump says which step wrote the slot; the replay knows it from the recorded schedule."""
    with open_dump(FIXTURES / "nan-block" / "dump.pplx") as dump:
        recorded = dump.state.failures[-1].non_finite
        dump.state.failures[-1].non_finite.written_by_step = 12345  # changes nothing on disk
    _, report = run("nan-block", {})
    assert report["failure"]["non_finite"]["written_by_step"] != 12345
    assert report["failure"]["non_finite"]["layer"] == recorded.layer
