"""Noise or corruption: three computations of real records, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from dumps.tensors import from_le32, le32
from replay.targets.load import load_weights
from replay.why.numbers import CORRUPTION, NEITHER, NOISE_ONLY, conclusion, in_words
from replay.why.numbers_job import run_numbers
from tests.fixture_folders import FIXTURES
from tests.incidents import MODEL, incident
from tests.plays import play
from tests.replay.why.conftest import LEAK, OPTIONS, visit
from tests.small_programs import state_of


def numbers(dump: Path, model: Path | None = None) -> dict[str, Any]:
    job = {"dump": str(dump), "model": None if model is None else str(model), "timeout_s": 60.0}
    return run_numbers(job, lambda event: None, load_weights)


@pytest.fixture(scope="module")
def damaged() -> dict[str, Any]:
    return numbers(FIXTURES / "nan-block" / "dump.pplx")


def test_alone_and_in_the_recorded_batches_exact_kernels_give_the_same_bits(damaged):
    assert damaged["recorded_kernels"] == "exact"
    assert damaged["alone_and_batch"]["compared"] == damaged["tokens"] == 64
    assert damaged["alone_and_batch"]["bits"] is None
    assert damaged["record_and_batch"]["compared"] == 63
    assert damaged["record_and_batch"]["token"] is None


def test_stock_kernels_show_what_rounding_is(damaged):
    stock = damaged["batch_and_stock"]
    assert stock["other_bits"] > 0
    assert stock["bits"]["margin"] > 0
    assert stock["beyond_noise"] == 0


def test_damage_in_the_cache_is_corruption_though_every_token_agrees(damaged):
    draw = damaged["failing_draw"]
    assert (draw["output_index"], draw["alone"]["finite"], draw["batch"]["finite"]) == (20, True, True)
    assert conclusion(damaged) == CORRUPTION
    assert "were damaged by something that is not in the tokens" in " ".join(in_words(damaged))


def test_a_request_that_reads_what_is_not_its_own_parts_from_itself_alone(leak, tiny):
    found = numbers(leak, tiny)
    assert found["strict"]  # it was recorded here
    first = found["alone_and_batch"]["bits"]
    assert (first["request_id"], first["output_index"]) == (f"r{LEAK.index(LEAK[2])}", 0)
    # The checks had filled the freed block with NaN when this was recorded, too.
    assert found["alone_and_batch"]["token"]["other"] == "no finite logits"
    assert conclusion(found) == CORRUPTION
    assert "in the batch the request read what is not its own" in in_words(found)[0]


def test_a_recorded_token_that_no_way_gives_is_corruption(tmp_path):
    state, sections = incident("nan-block")
    tokens = from_le32(state.requests[0].output_token_ids)
    tokens[3] = (tokens[3] + 1) % 320
    state.requests[0].output_token_ids = le32(tokens)
    state.requests[0].ClearField("output_digests")
    write_dump(tmp_path / "other.pplx", state, sections)
    found = numbers(tmp_path / "other.pplx", MODEL)
    record = found["record_and_batch"]
    assert (record["token"]["output_index"], record["token"]["cause"]) == (3, "corruption")
    assert record["token"]["gap"] > 0
    assert found["alone_and_batch"]["bits"] is None  # both went on with the recorded token


def test_a_record_that_begins_in_the_middle_is_computed_from_what_was_cached_then(tiny, tmp_path):
    people = [visit(20, 1, limit=30), visit(33, 2, limit=30, arrives=2)]
    dump = play(tiny, tmp_path, people, ring_bytes=4096, **OPTIONS).demand
    with open_dump(dump) as opened:
        assert opened.state.scheduler.start.running
    state = state_of(dump)
    state.failures.add(kind="stall", request=0, step=state.steps[-1].index)
    write_dump(tmp_path / "failed.pplx", state, [])
    found = numbers(tmp_path / "failed.pplx", tiny)
    assert found["alone_and_batch"]["compared"] > 5
    assert found["alone_and_batch"]["bits"] is None
    assert found["record_and_batch"]["token"] is None


def test_a_defect_of_the_sampler_is_in_force(tmp_path):
    assert numbers(FIXTURES / "temp-tiny" / "dump.pplx")["tokens"] == 1  # the second draw raises


def test_what_cannot_be_computed_is_said():
    found = numbers(FIXTURES / "kv-overflow" / "dump.pplx", Path("/nowhere"))
    assert "nowhere" in found["refused"]


def test_a_dump_without_token_ids_is_refused(tmp_path):
    state, sections = incident("nan-block")
    for request in state.requests:
        request.ClearField("prompt_token_ids")
        request.ClearField("output_token_ids")
    write_dump(tmp_path / "shape.pplx", state, sections)
    assert "token ids of" in numbers(tmp_path / "shape.pplx", MODEL)["refused"]


def test_a_token_within_rounding_of_the_top_is_noise(damaged):
    first = {"request_id": "r", "output_index": 1, "step": 2, "one": "token 1", "other": "token 2"}
    near = {**first, "margin": 0.001, "gap": 0.001, "cause": "noise"}
    record = {**damaged["record_and_batch"], "token": near, "other_tokens": 1}
    found = {**damaged, "strict": False, "failing_draw": None, "record_and_batch": record}
    assert conclusion(found) == NOISE_ONLY
    assert "lies 0.001 below the top, within rounding" in " ".join(in_words(found))
    assert conclusion({**damaged, "failing_draw": None}) == NEITHER
