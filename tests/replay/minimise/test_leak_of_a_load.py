"""The prefix-leak quirk in a load of many requests on a real model: found without it, confirmed on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dumps.schema.reader import open_dump
from replay.engine.request import SamplingParams
from replay.minimise.minimise import minimise
from replay.minimise.options import Options
from replay.minimise.others import Others
from replay.minimise.search import Search
from replay.minimise.trials import Bench
from replay.minimise.words import sizes
from replay.minimise.work import Work
from replay.scenario.extract import scenario_of
from replay.signature import Identity
from replay.targets.expected import own_signature
from tests.mixing import random_tokens
from tests.plays import Visit, play
from tests.replay.minimise.runs import Here
from tests.threads import torch_threads
from tests.tiny import make_tiny_model

VOCABULARY = 320
PREFILL = 100  # tokens of the prompt that is cancelled; a step takes 64


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with torch_threads(1):
        yield make_tiny_model(tmp_path_factory.mktemp("weights") / "model")


def leaking(model: Path, folder: Path, requests: int) -> Path:
    """The dump of a load, in which one client leaves in the middle of its prefill, and the next one has its prompt."""
    folder.mkdir()
    shared, last = random_tokens(48, VOCABULARY, seed=1), 3 * requests // 2 - 6
    visits = []
    for number in range(requests - 2):
        own = random_tokens(48 + number % 20, VOCABULARY, seed=100 + number)
        prompt = (*shared, *own[:24]) if number % 5 == 0 else tuple(own)
        sampling = SamplingParams(max_tokens=6 + number % 9, temperature=0.8, top_p=0.95, seed=number)
        visits.append(Visit(prompt=prompt, sampling=sampling, arrives=number))
    cancelled, limit = tuple(random_tokens(PREFILL, VOCABULARY, seed=999)), SamplingParams(max_tokens=10, seed=7)
    visits.append(Visit(prompt=cancelled, sampling=limit, arrives=last, leaves=last + 1))
    visits.append(Visit(prompt=cancelled, sampling=limit, arrives=last + 1))
    options = {"kv_blocks": 256, "block_size": 8, "prefix_cache": True, "checks": True, "max_num_batched_tokens": 64}
    played = play(model, folder, visits, steps=1000, quirks=("prefix-leak",), **options)
    (dump,) = played.dumps
    return dump


def identity_in(path: Path) -> Identity:
    with open_dump(path) as dump:
        signature = own_signature(dump.state)
        assert signature is not None
        return signature.identity


def test_two_of_sixteen_are_left_and_the_model_confirms_them(tiny, tmp_path):
    dump = leaking(tiny, tmp_path / "load", 16)
    identity = identity_in(dump)
    assert identity.kind == "contamination"
    with open_dump(dump) as opened:
        made = scenario_of(opened.state)
    assert sizes(made)["requests"] == 16
    work, bench = Work(tmp_path / "work", {}), Bench(dump=dump, wanted=identity, model=tiny, device="cpu")
    with Here(bench, work, trial_s=60.0) as trials:
        search = Search(trials, work, Others(tmp_path / "others"), engine="inference")
        facts = search.probe(made)
        found = search.run(made)
        on_the_model = trials.play(found, "inference", facts.steps["inference"])
    work.close()
    assert facts.targets == ("schedule", "inference")
    assert sizes(found)["requests"] == 2
    assert sizes(found)["tokens"] <= 8
    assert on_the_model.shows
    asked = [key for key in work.trials if key.startswith("inference")]
    assert 3 < len(asked) < len(work.trials) / 2


@pytest.mark.long
def test_a_load_of_64_requests_and_4000_tokens_becomes_two_requests_in_minutes(tiny, tmp_path):
    dump = leaking(tiny, tmp_path / "load", 64)
    with open_dump(dump) as opened:
        made = scenario_of(opened.state)
    assert sizes(made)["requests"] == 64
    assert sizes(made)["tokens"] > 4000
    began = time.monotonic()
    small = minimise(Options(dump=dump, out=tmp_path / "small.pplx", model=tiny))
    assert time.monotonic() - began < 600
    assert small.confirmed == "inference"
    assert small.after["requests"] <= 3
    assert small.after["tokens"] <= 100
    assert identity_in(small.out) == identity_in(dump)
    again = minimise(Options(dump=small.out, out=tmp_path / "again.pplx", model=tiny))
    assert again.already_minimal
    assert again.out.read_bytes() == small.out.read_bytes()
