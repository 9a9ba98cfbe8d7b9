"""The golden incidents: each dump replays to its verdict with its facts, and only to its own."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from itertools import permutations
from typing import Any

import aiohttp
import pytest

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.validate import validate
from replay.signature import Signature
from replay.targets.expected import expected_signature, own_signature
from tests.fixture_folders import FIXTURES, load, names, shown
from tests.replay.server.server_process import started

# kv-overflow was captured on the real model. The other one brings its own.
NEEDS_MODEL = {"kv-overflow"}

REPLAYS = [
    pytest.param(
        name,
        entry,
        id=f"{name}-{'-'.join(f'{k}={v}' for k, v in entry['options'].items()) or 'as-recorded'}",
        marks=pytest.mark.model if name in NEEDS_MODEL and entry["options"].get("target") != "schedule" else (),
    )
    for name in names()
    for entry in load(name)["replays"]
]


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


CODES = {"reproduced": 0, "not-reproduced": 10, "different-failure": 11, "diverged": 12, "inconclusive": 20}


def test_both_incidents_are_there():
    assert {"kv-overflow", "nan-block"} <= set(names())


@pytest.mark.parametrize(("name", "entry"), REPLAYS)
def test_replay(name, entry):
    code, report = run(name, entry["options"])
    assert report["verdict"] == entry["verdict"], report
    assert code == CODES[entry["verdict"]]
    for path, value in entry.get("shows", {}).items():
        assert shown(report, path) == value, path
    if entry["verdict"] == "reproduced":
        assert report["signature"] == report["expected_signature"] == load(name)["signature"]
        assert report["divergence"] is None


@pytest.mark.parametrize("name", names())
def test_the_dump_is_sound_small_and_carries_the_signature(name):
    path = FIXTURES / name / "dump.pplx"
    assert path.stat().st_size < 300_000
    with open_dump(path) as dump:
        dump.verify()
        assert validate(dump.state) == []
        signature = own_signature(dump.state)
    assert signature == Signature.from_json(load(name)["signature"])


@pytest.mark.model
@pytest.mark.parametrize(("name", "other"), list(permutations(names(), 2)))
def test_no_dump_reproduces_the_failure_of_another(name, other):
    code, report = run(name, {"signature": FIXTURES / other / "fixture.json"})
    assert report["verdict"] != "reproduced"
    assert code not in (0, 70)


@pytest.mark.parametrize("name", names())
def test_a_dump_and_its_fixture_file_name_the_same_failure_to_look_for(name):
    for file in ("dump.pplx", "fixture.json"):
        named = str(FIXTURES / name / file)
        assert expected_signature(pb.RuntimeState(), named) == Signature.from_json(load(name)["signature"])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.model if n in NEEDS_MODEL else ()) for n in names()]
)
async def test_the_replay_server_gives_the_same_report(name):
    _, expected = run(name, {})
    command = ["-m", "replay.cli", "replay", "serve", "--port", "0", "--dumps", str(FIXTURES / name), "--json"]
    with started(command, FIXTURES / name) as server:
        url, body = f"{server.url}/debug/replay", {"dump": expected["dump"]["id"]}
        async with aiohttp.ClientSession(headers=server.headers) as client, client.post(url, json=body) as answer:
            report = await answer.json()
            assert (answer.status, answer.headers["X-PPLX-Exit-Code"]) == (200, "0")
    assert report.pop("timings").keys() == expected.pop("timings").keys()
    assert report == expected


def test_the_place_of_the_nan_is_derived_and_not_copied():
    """The dump says which step wrote the slot; the replay knows it from the recorded schedule."""
    with open_dump(FIXTURES / "nan-block" / "dump.pplx") as dump:
        recorded = dump.state.failures[-1].non_finite
        dump.state.failures[-1].non_finite.written_by_step = 12345  # changes nothing on disk
    _, report = run("nan-block", {})
    assert report["failure"]["non_finite"]["written_by_step"] != 12345
    assert report["failure"]["non_finite"]["layer"] == recorded.layer


@pytest.mark.venv
def test_target_schedule_runs_where_torch_is_not_installed(base_python):
    probe = subprocess.run([base_python, "-c", "import torch"], capture_output=True, check=False)
    assert probe.returncode != 0, "this environment has torch"
    command = [base_python, "-m", "replay.cli", "replay", "run", str(FIXTURES / "kv-overflow" / "dump.pplx")]
    done = subprocess.run([*command, "--target", "schedule", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["verdict"] == "reproduced"
    without = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert without.returncode == 20
    assert "pplx-replay[engine]" in without.stdout
