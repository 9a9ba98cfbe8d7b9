"""A scenario is read back as it was written, refuses what it cannot be, and says which of two is smaller."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.quirks import parse_quirk
from replay.engine.request import FinishCause, InternalFlags, SamplingParams
from replay.engine.schedule import EngineConfig, OnExhausted
from replay.errors import UsageError
from replay.scenario.scenario import Scenario, Visit, answer_tokens, size

CONFIG = EngineConfig(num_blocks=8, max_model_len=40, block_size=4)
QUIRKS = ("kv-bit-flip:request=0,layer=1,position=4,after_step=6", "prefix-leak", "abort-after-finish")

visits = st.builds(
    Visit,
    id=st.text(min_size=1, max_size=6),
    prompt=st.lists(st.integers(-3, 90), min_size=1, max_size=6).map(tuple),
    sampling=st.builds(
        SamplingParams,
        max_tokens=st.integers(0, 9),
        temperature=st.floats(0, 2),
        logit_bias=st.lists(st.tuples(st.integers(0, 9), st.floats(-9, 9)), max_size=2).map(tuple),
        stop=st.lists(st.text(max_size=4), max_size=2).map(tuple),
        stop_token_ids=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    ),
    flags=st.builds(InternalFlags, early_exit=st.none() | st.floats(0.5, 1), fallback_trace=st.booleans()),
    output=st.lists(st.integers(-1, 90), max_size=4).map(tuple),
    ends=st.sampled_from([None, FinishCause.EOS, FinishCause.NON_FINITE]),
)
scenarios = st.builds(
    Scenario,
    config=st.builds(
        EngineConfig,
        num_blocks=st.integers(1, 99),
        max_model_len=st.integers(1, 99),
        on_kv_exhausted=st.sampled_from(OnExhausted),
        prefix_cache=st.booleans(),
    ),
    visits=st.lists(visits, max_size=4, unique_by=lambda visit: visit.id).map(tuple),
    quirks=st.lists(st.sampled_from(QUIRKS), max_size=2, unique=True).map(lambda names: tuple(map(parse_quirk, names))),
    checks=st.booleans(),
    eos_token_ids=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


def visit(name: str = "a", **changes: Any) -> Visit:
    return replace(Visit(id=name, prompt=(1, 2, 3)), **changes)


def scenario(*people: Visit, **changes: Any) -> Scenario:
    return replace(Scenario(config=CONFIG, visits=people, vocab_size=100), **changes)


@given(scenarios)
def test_what_was_written_is_read_back_as_an_equal_scenario(made):
    read = Scenario.from_json(json.loads(json.dumps(made.to_json())))
    assert read == made
    assert read.notes == made.notes
    assert (hash(read), read.digest) == (hash(made), made.digest)


@given(scenarios, scenarios)
def test_digests_are_equal_exactly_where_scenarios_are(one, other):
    assert (one.digest == other.digest) == (one == other)


def test_notes_do_not_make_another_scenario():
    plain = scenario(visit())
    assert replace(plain, notes=("guessed",)) == plain
    assert replace(plain, notes=("guessed",)).digest == plain.digest


def _with(*path: object, value: object) -> dict[str, object]:
    document = scenario(visit()).to_json()
    place = document
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    return document


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (_with("format", value=2), "scenario.format is 2"),
        (_with("surplus", value=2), "unknown key 'surplus'"),
        (_with("config", "surplus", value=2), "scenario.config has an unknown key 'surplus'"),
        (_with("config", "num_blocks", value="8"), "scenario.config.num_blocks must be of type int, got str"),
        (_with("config", "num_blocks", value=True), "scenario.config.num_blocks must be of type int, got bool"),
        (_with("config", "on_kv_exhausted", value="panic"), "is no OnExhausted: 'panic'"),
        (_with("visits", value={}), "scenario.visits must be of type list"),
        (_with("visits", 0, value=[]), "scenario.visits[0] must be an object"),
        (_with("visits", 0, value={"prompt": [1]}), "scenario.visits[0] has no key 'id'"),
        (_with("visits", 0, "prompt", value=[1, 2.0]), "scenario.visits[0].prompt must be a list of integers"),
        (_with("visits", 0, "prompt", value="abc"), "scenario.visits[0].prompt must be a list, got str"),
        (_with("visits", 0, "sampling", "logit_bias", value=[[1]]), "logit_bias[0] must have 2 entries, got 1"),
        (_with("visits", 0, "sampling", "temperature", value=None), "temperature must be of type float"),
        (_with("visits", 0, "ends", value="tired"), "is no FinishCause: 'tired'"),
        (_with("quirks", value=["kv-bit-flop"]), "no quirk is called 'kv-bit-flop'"),
        (_with("checks", value=0), "scenario.checks must be of type bool"),
        ([], "scenario must be an object, got list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_document_that_is_none_is_refused_by_the_place(document, words):
    with pytest.raises(UsageError) as error:
        Scenario.from_json(document)
    assert words in str(error.value)
    assert error.value.remedy


def test_a_document_without_a_key_is_refused():
    document = scenario(visit()).to_json()
    del document["checks"]
    with pytest.raises(UsageError, match="scenario has no key 'checks'"):
        Scenario.from_json(document)


@pytest.mark.parametrize(
    ("people", "words"),
    [
        ([visit("a", arrives=3), visit("b", arrives=2)], "visit b arrives at step 2, after one that arrives at 3"),
        ([visit("a", arrives=-1)], "arrives at step -1"),
        ([visit("a"), visit("a")], "two visits have the same id"),
        ([visit("a", prompt=())], "it has no prompt"),
        ([visit("a", prompt=(100,))], "outside the vocabulary of 100"),
        ([visit("a", output=(1, 100))], "outside the vocabulary of 100"),
        ([visit("a", arrives=3, leaves=2)], "it leaves at step 2 and arrives at 3"),
        ([visit("a", leaves_again=2)], "it leaves again before it left"),
        ([visit("a", leaves=3, leaves_again=2)], "it leaves again before it left"),
        ([visit("a", leaves=3, leave_cause=FinishCause.EOS)], "nobody leaves because of eos"),
        ([visit("a", ends=FinishCause.MAX_TOKENS)], "max-tokens is no end that an answer has of its own"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(people, words):
    with pytest.raises(UsageError) as error:
        scenario(*people)
    assert words in str(error.value)


def test_a_pool_without_blocks_is_refused():
    with pytest.raises(UsageError, match=r"config\.num_blocks is 0"):
        scenario(visit(), config=replace(CONFIG, num_blocks=0))


def test_an_answer_is_bounded_by_the_first_of_its_limits():
    short = SamplingParams(max_tokens=5)
    assert answer_tokens(visit(), CONFIG) == 37
    assert answer_tokens(visit(sampling=short), CONFIG) == 5
    assert answer_tokens(visit(sampling=short, output=(1, 2), ends=FinishCause.EOS), CONFIG) == 2
    assert answer_tokens(visit(sampling=short, output=(1, 2)), CONFIG) == 5
    assert answer_tokens(visit(prompt=(1,) * 40), CONFIG) == 1


def test_fewer_requests_are_smaller_than_fewer_tokens_and_those_than_fewer_events():
    short = SamplingParams(max_tokens=1)
    in_order = [
        scenario(visit(sampling=short)),
        scenario(visit(sampling=short), config=replace(CONFIG, num_blocks=9)),
        scenario(visit(sampling=short, arrives=1), config=replace(CONFIG, num_blocks=9)),
        scenario(visit()),
        scenario(visit(), quirks=(parse_quirk("prefix-leak"),)),
        scenario(visit("a", sampling=short), visit("b", sampling=short)),
    ]
    assert [size(one) for one in in_order] == sorted(size(one) for one in in_order)
    assert len({size(one) for one in in_order}) == len(in_order)
