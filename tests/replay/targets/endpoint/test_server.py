"""Replays against the reference server: a real pool that runs out, a real one that does not, a model that is not there.

The dumps come from the server's own parts; the tiny model's answers are the same each time, what cuts them is the pool.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.isolate.endpoint import run_endpoint
from tests.fixture_folders import FIXTURES
from tests.recordings import record
from tests.reports import findings
from tests.servers import running_server
from tests.tiny import make_tiny_model

PROMPTS = [[40 + i, 50, 60, 70, 80, 90, 100, 110] for i in range(4)]
SMALL, LARGE = ("--kv-blocks", "6"), ("--kv-blocks", "60")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("weights") / "tiny")


@pytest.fixture(scope="module")
def cut(tiny, tmp_path_factory) -> Path:
    """Four requests of 8 + 60 tokens in a pool of 96: the first that finds no block is cut."""
    recording = record(
        tiny,
        tmp_path_factory.mktemp("cut"),
        PROMPTS,
        sampling=SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, seed=2**63 + 5),
        kv_blocks=6,
        on_kv_exhausted=OnExhausted.TRUNCATE,
    )
    return recording.dumps[-1]


@pytest.fixture(scope="module")
def small(tiny, tmp_path_factory):
    with running_server(tiny, tmp_path_factory.mktemp("small"), *SMALL, "--on-kv-exhausted", "truncate") as server:
        yield server


@pytest.fixture(scope="module")
def large(tiny, tmp_path_factory):
    with running_server(tiny, tmp_path_factory.mktemp("large"), *LARGE) as server:
        yield server


def replay(dump: Path, url: str, **options):
    result = run_endpoint({"dump": str(dump), "target": f"endpoint={url}", **options})
    assert result.report is not None, result.error
    return result.report


def test_a_small_pool_cuts_answers_again(cut, small):
    report = replay(cut, small.url, repeat=3)
    assert report["verdict"] == "reproduced", json.dumps(report["requests"], indent=1)
    assert report["repeat"]["n"] == 3
    assert 1 <= report["repeat"]["reproduced"] <= 3
    assert report["endpoint"]["dropped_parameters"] == []
    assert report["endpoint"]["prompts"] == "token-ids"
    was_cut = [one for one in report["requests"] if one["status"] == "cut"]
    assert was_cut
    assert all(one["finish_reason"] == "length" and one["output_len"] < one["asked_len"] == 60 for one in was_cut)
    assert all(one["output_len"] == 60 for one in report["requests"] if one["status"] == "answered")
    assert len(small.dump_files()) >= report["repeat"]["reproduced"], "the server saw it too"


def test_a_large_pool_does_not(cut, large):
    report = replay(cut, large.url, repeat=2)
    assert report["verdict"] == "not-reproduced", json.dumps(report["requests"], indent=1)
    assert report["repeat"] == {"n": 2, "reproduced": 0}
    assert [one["output_len"] for one in report["requests"]] == [60] * 4
    assert not large.dump_files()


def test_a_model_of_another_name_is_asked_for_by_name(cut, large):
    report = replay(cut, large.url, model="no-such-model")
    assert report["reason_code"] == "endpoint-without-model"
    assert "tiny" in findings(report, "endpoint-said")[0]["remedy"]


def test_another_models_dump_is_refused_and_not_judged(large):
    """Token ids of one vocabulary mean nothing to another: the server says so, and no verdict is made of it."""
    report = replay(FIXTURES / "kv-overflow" / "dump.pplx", large.url, model="tiny")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "endpoint-refused")
    assert "vocabulary" in findings(report, "endpoint-said")[0]["message"]
