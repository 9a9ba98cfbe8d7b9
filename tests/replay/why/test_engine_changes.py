"""What is tried follows from the dump, and all of it is something that a replay takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.targets.job import options_of
from replay.why.change import Change
from replay.why.engine_changes import blocks_for_all, changes_of, needs_model
from tests.fixture_folders import FIXTURES
from tests.incidents import of_engines
from tests.small_dump import small_sections, small_state

Changed = Callable[[pb.RuntimeState], object]


def of(path: Path) -> tuple[dict[str, Change], dict[str, str]]:
    with open_dump(path) as dump:
        changes, left = changes_of(dump)
    return {change.name: change for change in changes}, {one.what: one.why for one in left}


@pytest.fixture
def small(tmp_path):
    """Names of the changes of the small dump, once something in it is other."""

    def small(change: Changed = lambda state: None) -> set[str]:
        state = small_state()
        change(state)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pplx"
        write_dump(path, state, small_sections())
        return set(of(path)[0])

    return small


def test_of_a_plain_run_what_every_run_has_can_be_changed(small):
    assert small() == {
        "kv=recompute",
        "kv.num_blocks=6",
        "kv.num_blocks=7",
        "scheduler.on_kv_exhausted=preempt",
        "scheduler.on_kv_exhausted=raise",
        "scope=request",
        "schedule=live",
        "scheduler.max_num_seqs=1",
        "kernels=stock",
    }


def bfloat16(state: pb.RuntimeState) -> None:
    state.model.dtype = state.kv.dtype = "bfloat16"


def int8(state: pb.RuntimeState) -> None:
    state.engine.kv_quant_bits = 8


def cached(state: pb.RuntimeState) -> None:
    state.engine.prefix_cache = True


def checked(state: pb.RuntimeState) -> None:
    state.engine.checks = True


def warm(state: pb.RuntimeState) -> None:
    state.requests[0].sampling.temperature = 0.7


def early(state: pb.RuntimeState) -> None:
    state.requests[1].flags.early_exit = 0.8


def cut(state: pb.RuntimeState) -> None:
    state.failures[0].invariant = "max-model-len"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (bfloat16, "model.dtype=float32"),
        (int8, "kv.quant_bits=0"),
        (cached, "scheduler.prefix_cache=false"),
        (checked, "checks=off"),
        (warm, "sampling.temperature=0"),
        (early, "sampling.early_exit=0"),
        (cut, "model.max_model_len=32"),
        (lambda state: state.quirks.add(name="abort-after-finish"), "quirk.abort-after-finish=off"),
        *(
            (lambda state, name=name: setattr(state.requests[0].sampling, name, 0.5), f"sampling.{name}={off}")
            for name, off in {
                "top_p": "1",
                "min_p": "0",
                "repetition_penalty": "1",
                "presence_penalty": "0",
                "frequency_penalty": "0",
            }.items()
        ),
        (lambda state: setattr(state.requests[0].sampling, "top_k", 5), "sampling.top_k=0"),
    ],
)
def test_what_a_run_had_can_be_taken_from_it(small, change, name):
    assert small(change) - small() == {name}


def test_without_other_requests_nothing_is_tried_alone(small):
    def one(state: pb.RuntimeState) -> None:
        del state.requests[1]
        del state.steps[:]
        state.failures[0].request = 0

    assert not {"scope=request", "scheduler.max_num_seqs=1"} & small(one)


def test_a_request_whose_client_left_is_not_tried_alone(tmp_path):
    _, left = of(FIXTURES / "abort-race" / "dump.pplx")
    assert "only the arrival" in left["scope=request"]


def test_numbers_of_another_kind_leave_the_recorded_contents_out(tmp_path):
    state = small_state()
    bfloat16(state)
    write_dump(tmp_path / "with.pplx", state, [])
    assert of(tmp_path / "with.pplx")[0]["model.dtype=float32"].all_options == {}
    sections = [section for section in small_sections() if section.kind == "kv-contents"]
    write_dump(tmp_path / "without.pplx", state, sections)
    assert of(tmp_path / "without.pplx")[0]["model.dtype=float32"].all_options == {"kv": "recompute"}


def test_damage_that_no_replay_does_again_is_told_and_not_tried():
    changes, left = of(FIXTURES / "nan-block" / "dump.pplx")
    assert "kv=recompute" in changes
    assert "its damage is in recorded KV contents" in left["quirk.kv-bit-flip=off"]


def test_a_pool_for_all_has_room_for_as_many_as_run_at_once():
    state = small_state()
    assert blocks_for_all(state) == 4 + 3  # 3 + 4 tokens and 2 + 4, in blocks of 2
    state.engine.max_num_seqs = 1
    assert blocks_for_all(state) == 4
    state.requests[0].sampling.max_tokens = 0
    assert blocks_for_all(state) == 8  # 16 tokens are allowed


@pytest.mark.parametrize("name", of_engines())
def test_every_change_is_one_that_a_replay_takes(name):
    changes, left = of(FIXTURES / name / "dump.pplx")
    assert changes
    assert not changes.keys() & left.keys()
    for change in changes.values():
        options_of(change.applied({"target": "inference"}))
        if not needs_model(change):
            options_of(change.applied({"target": "schedule"}))
