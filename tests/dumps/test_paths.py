"""The path grammar, and look-ups with it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.errors import UnknownPath
from dumps.paths import look_up, parse, pattern
from dumps.schema import state_pb2 as pb
from tests.small_dump import small_state


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("manifest", ("manifest",)),
        ("requests[0].sampling.seed", ("requests", 0, "sampling", "seed")),
        ("failures[-1].message", ("failures", -1, "message")),
        ("requests[].id", ("requests", None, "id")),
    ],
)
def test_steps(path, steps):
    assert parse(path) == steps


@pytest.mark.parametrize(
    "path", ["", ".", "a..b", "a[", "a[x]", "a[1][2]", "a[-]", "a b", "a[1]b", "0a", "a." * 300, "ä"]
)
def test_what_is_not_a_path(path):
    with pytest.raises(UnknownPath, match="is not a path"):
        parse(path)


@given(st.text(max_size=30))
def test_any_text_is_a_path_or_an_error(text):
    with contextlib.suppress(UnknownPath):
        look_up(small_state(), text)


def test_patterns():
    assert pattern("requests[3].sampling.logit_bias[-1].bias") == "requests[].sampling.logit_bias[].bias"


def test_values():
    state = small_state()
    assert look_up(state, "requests[0].sampling.seed") == 7
    assert look_up(state, "failures[-1].message") == "no block left"
    assert look_up(state, "steps[1].scheduled[0].start") == 2
    assert look_up(state, "engine") == state.engine
    assert list(look_up(state, "scheduler.running")) == [0]
    assert look_up(state, "scheduler.running[0]") == 0
    assert len(look_up(state, "requests")) == 2


def test_what_is_not_set_is_none_and_not_zero():
    assert look_up(small_state(), "requests[0].finish_step") is None
    assert look_up(small_state(), "scheduler.start") is None
    assert look_up(pb.RuntimeState(), "kv") is None


@pytest.mark.parametrize(
    ("path", "says", "remedy"),
    [
        ("failures[0].mesage", "failures[0] has no field 'mesage'", "failures[0].message"),
        ("manifst.id", "a dump has no field 'manifst'", "manifest"),
        ("requests[2].id", "requests has 2 elements, there is no [2]", "requests"),
        ("requests[-3]", "there is no [-3]", "requests"),
        ("requests.id", "requests is a list of 2", "requests[0].id"),
        ("requests[].id", "names every element", "requests[0]"),
        ("manifest[0]", "manifest is not a list", "manifest"),
        ("manifest.id.x", "manifest.id has no fields", "manifest.id"),
        ("manifest.id[0]", "manifest.id is not a list", "manifest.id"),
        ("kv.free_blocks[0]", "kv.free_blocks is not a list", "kv.free_blocks"),
        ("scheduler.start.before_step", "scheduler.start has no fields", "scheduler.start"),
    ],
)
def test_errors_name_the_nearest(path, says, remedy):
    with pytest.raises(UnknownPath) as caught:
        look_up(small_state(), path)
    assert says in caught.value.message
    assert remedy in caught.value.remedy


def test_a_field_of_a_part_is_named_with_the_part():
    with pytest.raises(UnknownPath) as caught:
        look_up(small_state(), "reason")
    assert caught.value.remedy == "Did you mean manifest.reason?"
