"""A visit is refused where the server's own parser would, and let in where a defect leaves the check out."""

from __future__ import annotations

from dataclasses import replace

from replay.engine.quirks import parse_quirk
from replay.engine.request import SamplingParams
from replay.engine.schedule import EngineConfig
from replay.scenario.door import refused
from replay.scenario.scenario import Scenario, Visit

CONFIG = EngineConfig(num_blocks=4, max_model_len=40, block_size=4)


def scenario(*people: Visit, quirks: tuple[str, ...] = ()) -> Scenario:
    return Scenario(config=CONFIG, visits=people, vocab_size=50, quirks=tuple(map(parse_quirk, quirks)))


def test_what_fits_is_let_in():
    assert refused(scenario(Visit(id="a", prompt=(1,) * 16))) == {}


def test_a_prompt_longer_than_the_pool_is_refused_unless_nobody_looks():
    long = Visit(id="a", prompt=(1,) * 17)
    assert refused(scenario(long, Visit(id="b", prompt=(1,)))) == {"a": "its prompt needs 5 KV blocks of 4"}
    assert refused(scenario(long, quirks=("prompt-unchecked",))) == {}


def test_a_prompt_without_room_for_an_answer_is_refused():
    roomy = scenario(Visit(id="a", prompt=(1,) * 40))
    roomy = replace(roomy, config=replace(CONFIG, num_blocks=40))
    assert refused(roomy) == {"a": "its prompt has 40 tokens, at most 39 leave room for an answer"}
    assert refused(replace(roomy, visits=(Visit(id="a", prompt=(1,) * 39),))) == {}


def test_sampling_parameters_out_of_range_are_refused_but_token_ids_that_nobody_looks_at():
    hot = Visit(id="a", prompt=(1,), sampling=SamplingParams(temperature=3))
    beyond = Visit(id="b", prompt=(1,), sampling=SamplingParams(stop_token_ids=(50,)))
    assert refused(scenario(hot, beyond)) == {
        "a": "temperature must be between 0 and 2, got 3",
        "b": "stop_token_ids token id 50 is outside the vocabulary of 50",
    }
    assert list(refused(scenario(hot, beyond, quirks=("token-ids-unchecked",)))) == ["a"]
