"""Quirks: parsing, and the bit flip that makes a key NaN."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.damage import HOOKS, flip_top_exponent_bit
from replay.engine.defects import NO_DEFECTS, Defects
from replay.engine.engine import Engine, StepOutcome
from replay.engine.live import LiveScheduler
from replay.engine.quirks import KINDS, activate, code_hooks, defects_of, help_text, parse_quirk
from replay.engine.request import FinishCause, Request, SamplingParams
from replay.engine.runner import ModelRunner
from replay.engine.schedule import EngineConfig, StepPlan
from replay.engine.weights import load_model
from replay.errors import UsageError
from tests.mixing import random_tokens
from tests.tiny import make_tiny_model

TEXT = "kv-bit-flip:request=1,layer=1,position=5,after_step=6"


def test_a_quirk_is_written_as_it_is_read():
    quirk = parse_quirk("kv-bit-flip:layer=1,request=2,after_step=20,position=5")
    assert quirk.parameters == {"request": 2, "layer": 1, "position": 5, "after_step": 20}
    assert str(quirk) == "kv-bit-flip:request=2,layer=1,position=5,after_step=20"
    assert parse_quirk(str(quirk)) == quirk


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv-bit-flop:layer=1", "Did you mean: kv-bit-flip?"),
        ("", "no quirk is called ''"),
        ("kv-bit-flip", "request (which request, counted from 0 in order of arrival) is missing"),
        ("kv-bit-flip:request=1,layer=1,position=5", "after_step"),
        ("kv-bit-flip:request=1,layr=1", "Did you mean: layer?"),
        ("kv-bit-flip:request=1,request=1", "given twice"),
        ("kv-bit-flip:request=-1", "whole number from 0 up, got '-1'"),
        ("kv-bit-flip:request=1.5", "whole number"),
        ("kv-bit-flip:request", "whole number"),
        ("kv-bit-flip:request=" + "9" * 5000, "whole number"),
        ("kv-bit-flip:request=²", "whole number"),
        ("prefix-leak:", "prefix-leak has no parameters"),
        ("multinomial:seed=3", "has no parameters, got 'seed=3'"),
        ("prefix_leak", "Did you mean: prefix-leak"),
        ("free-block-reuse:running=0,block=1", "after_step (the engine step"),
    ],
)
def test_wrong_text_says_what_would_be_right(text, message):
    with pytest.raises(UsageError) as caught:
        parse_quirk(text)
    assert message in f"{caught.value} {caught.value.remedy}"


def test_every_quirk_says_what_it_is_where_it_was_seen_and_what_it_takes():
    text = " ".join(help_text().split())
    for kind in KINDS.values():
        assert kind.name in text
        for part in (kind.defect, kind.seen_in, *kind.parameters.values()):
            assert part in text
        assert parse_quirk(kind.name + ":" * bool(kind.parameters) + ",".join(f"{k}=7" for k in kind.parameters))


def test_a_quirk_without_parameters_is_its_name():
    assert str(parse_quirk("prefix-leak")) == "prefix-leak"
    assert parse_quirk("prefix-leak").detail == ""


def test_code_quirks_turn_on_their_switches_and_no_other():
    assert defects_of([]) == NO_DEFECTS
    switched = {name: defects_of([quirk]) for name, quirk in every_quirk().items()}
    assert switched["prefix-leak"] == Defects(register_early=True)
    assert switched["abort-after-finish"] == Defects(abort_twice=True)
    assert switched["multinomial"] == Defects(multinomial=True)
    assert {switched[name] for name in ("kv-bit-flip", "int8-zero-scale", "free-block-reuse")} == {NO_DEFECTS}
    assert all(kind.switch in ("", *Defects.__dataclass_fields__) for kind in KINDS.values())


def every_quirk():
    return {
        name: parse_quirk(name + ":" * bool(kind.parameters) + ",".join(f"{key}=1" for key in kind.parameters))
        for name, kind in KINDS.items()
    }


def test_every_quirk_acts_somewhere():
    scheduler = LiveScheduler(EngineConfig(num_blocks=4, max_model_len=8))
    for name, quirk in every_quirk().items():
        acts = [quirk.kind.switch, *code_hooks([quirk], scheduler), *([name] if name in HOOKS else [])]
        assert sum(bool(one) for one in acts) == 1
        assert quirk.kind.damages_data == (name in HOOKS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(st.floats(1, 2, exclude_max=True, width=32), st.sampled_from([1, -1]))
def test_the_flip_makes_any_value_between_one_and_two_non_finite_and_nothing_else(dtype, value, sign):
    values = torch.tensor([0.5, value * sign, -3.0]).to(dtype)
    if not 1 <= abs(float(values[1])) < 2:  # rounded up to two
        return
    flip_top_exponent_bit(values, 1)
    assert not math.isfinite(float(values[1]))
    assert values[[0, 2]].tolist() == [0.5, -3.0]
    flip_top_exponent_bit(values, 1)
    assert float(values[1]) == float(torch.tensor(value * sign).to(dtype))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request, tmp_path_factory):
    return load_model(make_tiny_model(tmp_path_factory.mktemp("tiny")), dtype=request.param)


def start(model, text: str):
    kv = model.kv_store(num_blocks=32, block_size=8)
    quirk = activate(parse_quirk(text), kv)
    config = EngineConfig(num_blocks=32, block_size=8, max_model_len=128)
    engine = Engine(scheduler=LiveScheduler(config), executor=ModelRunner(model, kv), hooks=[quirk])
    requests = [
        Request(
            id=f"r{index}",
            tokens=random_tokens(9, 320, seed=index),
            num_prompt=9,
            sampling=SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
        )
        for index in range(3)
    ]
    for request in requests:
        engine.add(request)
    return engine, quirk, kv, requests


def run(engine) -> list[StepOutcome]:
    outcomes = []
    while (outcome := engine.step()) is not None:
        outcomes.append(outcome)
    return outcomes


def test_a_flipped_key_makes_the_next_step_of_that_request_non_finite(model):
    engine, quirk, kv, requests = start(model, TEXT)
    before = None
    while engine.scheduler.next_step <= 6:
        before = kv.data.clone()
        engine.step()
    assert before is not None
    step_slots = set(kv.just_written.tolist())
    changed = {
        (layer, slot, which)
        for layer, slot, which in (kv.data != before).flatten(3).any(dim=3).nonzero().tolist()
        if slot not in step_slots
    }
    assert len(changed) == 1
    layer, slot, which = changed.pop()
    assert (layer, which, kv.owner[slot]) == (1, 0, "r1")
    assert kv.position[slot] >= 5
    assert int((~torch.isfinite(kv.data)).sum()) == 1
    assert "layer 1" in quirk.happened
    assert f"block {slot // 8}, slot {slot % 8}" in quirk.happened
    outcomes = run(engine)
    assert requests[1].finish_cause is FinishCause.NON_FINITE
    assert [f.request_id for o in outcomes for f in o.failures] == ["r1"]
    assert outcomes[0].failures[0].step == 7
    assert requests[0].finish_cause is requests[2].finish_cause is FinishCause.MAX_TOKENS


def test_the_next_position_is_taken_where_no_value_fits(model, caplog):
    engine, quirk, kv, requests = start(model, TEXT)
    while engine.scheduler.next_step <= 5:
        engine.step()
    kv.data[1, requests[1].slot(5, 8), 0] = 0.25
    kv.data[1, requests[1].slot(6, 8), 0] = 0.25
    kv.data[1, requests[1].slot(7, 8), 0, 0, 3] = 1.5
    engine.step()
    assert "position 7" in quirk.happened
    assert "no key element between 1 and 2 at position 5" in caplog.text


def test_it_waits_until_the_position_is_in_the_cache(model):
    engine, quirk, _, _ = start(model, "kv-bit-flip:request=0,layer=0,position=14,after_step=2")
    steps = []
    while not quirk.happened:
        outcome = engine.step()
        assert outcome is not None
        steps.append(outcome.plan.index)
    # Position 14 is computed by the sixth step after the prefill of nine.
    assert steps[-1] == 6


def test_a_request_that_ended_before_leaves_the_cache_alone(model):
    engine, quirk, kv, requests = start(model, "kv-bit-flip:request=0,layer=0,position=2,after_step=3")
    engine.step()
    engine.abort(requests[0], FinishCause.CLIENT_GONE)
    run(engine)
    assert quirk.happened.startswith("nothing: request r0 had ended")
    assert torch.isfinite(kv.data).all()


def test_a_layer_that_the_model_does_not_have_is_refused(model):
    with pytest.raises(UsageError, match="layer 2"):
        start(model, "kv-bit-flip:request=0,layer=2,position=2,after_step=3")


def test_a_request_that_never_arrives_changes_nothing(model):
    engine, quirk, kv, _ = start(model, "kv-bit-flip:request=9,layer=0,position=2,after_step=3")
    run(engine)
    quirk.stepped(StepOutcome(StepPlan(index=99)))
    assert quirk.happened == ""
    assert torch.isfinite(kv.data).all()


def test_a_zero_scale_makes_one_token_of_an_int8_cache_non_finite(model):
    kv = model.kv_store(num_blocks=32, block_size=8, quant_bits=8)
    quirk = activate(parse_quirk("int8-zero-scale:request=0,layer=1,position=5,after_step=3"), kv)
    config = EngineConfig(num_blocks=32, block_size=8, max_model_len=128, kv_quant_bits=8)
    engine = Engine(scheduler=LiveScheduler(config), executor=ModelRunner(model, kv), hooks=[quirk])
    request = Request(id="r", tokens=random_tokens(9, 320, seed=1), num_prompt=9, sampling=SamplingParams(max_tokens=9))
    engine.add(request)
    run(engine)
    assert request.finish_cause is FinishCause.NON_FINITE
    assert "layer 1, block 0, slot 5 (request r, position 5)" in quirk.happened
    bad = (~torch.isfinite(kv.scales)).nonzero().tolist()
    assert bad == [[1, 5, which, head] for which in range(2) for head in range(kv.num_kv_heads)]


@pytest.mark.parametrize(
    ("text", "bits", "message"),
    [
        ("int8-zero-scale:request=0,layer=1,position=5,after_step=3", 0, "no scales"),
        ("kv-bit-flip:request=0,layer=1,position=5,after_step=3", 8, "no exponent bits"),
    ],
)
def test_damage_that_the_cache_cannot_have_is_refused(model, text, bits, message):
    with pytest.raises(UsageError, match=message):
        activate(parse_quirk(text), model.kv_store(num_blocks=4, block_size=8, quant_bits=bits))


@pytest.mark.parametrize(("after", "expected"), [(2, [1]), (1, []), (9, [])])
def test_a_block_is_freed_under_its_request_after_its_step_only(after, expected):
    scheduler = LiveScheduler(EngineConfig(num_blocks=8, block_size=4, max_model_len=40))
    [quirk] = code_hooks([parse_quirk("free-block-reuse:running=0,block=1,after_step=2")], scheduler)
    request = Request(id="r", tokens=list(range(9)), num_prompt=9)
    scheduler.add(request)
    assert scheduler.plan() is not None
    before = dict(scheduler.pool.free)
    quirk.stepped(StepOutcome(StepPlan(index=after)))
    assert [block for block in scheduler.pool.free if block not in before] == expected
    assert request.blocks == [0, 1, 2]


def test_a_block_that_nobody_has_is_not_freed():
    scheduler = LiveScheduler(EngineConfig(num_blocks=8, block_size=4, max_model_len=40))
    for text in ("running=0,block=0,after_step=2", "running=7,block=0,after_step=2"):
        [quirk] = code_hooks([parse_quirk(f"free-block-reuse:{text}")], scheduler)
        quirk.stepped(StepOutcome(StepPlan(index=2)))
        assert quirk.happened.startswith("nothing: no block 0")
    assert scheduler.pool.num_free == 8
