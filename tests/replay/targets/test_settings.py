from __future__ import annotations

import pytest

from replay.engine.request import InternalFlags, SamplingParams
from replay.engine.schedule import EngineConfig, OnExhausted
from replay.errors import UsageError
from replay.targets.settings import SETTINGS, checked, parse_assignments

CONFIG = EngineConfig(num_blocks=8, max_model_len=64)


def test_settings_change_what_they_name():
    overrides = checked(
        parse_assignments(("kv.num_blocks=96", "scheduler.on_kv_exhausted=raise", "sampling.top_p=0.5"))
    )
    assert overrides.config(CONFIG).num_blocks == 96
    assert overrides.config(CONFIG).on_kv_exhausted is OnExhausted.RAISE
    assert overrides.sampling(SamplingParams(), 100) == SamplingParams(top_p=0.5)
    assert overrides.changes_tokens


def test_a_pool_size_leaves_recorded_tokens_valid():
    assert not checked({"kv.num_blocks": 96}).changes_tokens


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_has_a_field_and_a_sentence(key):
    setting = SETTINGS[key]
    flags = InternalFlags.__dataclass_fields__
    names = (*EngineConfig.__dataclass_fields__, *SamplingParams.__dataclass_fields__, *flags, "dtype", "quirk")
    assert setting.field in names
    assert setting.help


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("kv.num_blocks", "no '='"),
        ("kv.num_blcks=3", "no such setting"),
        ("kv.num_blocks=0", "at least 1"),
        ("kv.num_blocks=3.5", "an integer"),
        ("kv.num_blocks=1e3", "an integer"),
        ("model.dtype=int4", "float32 or bfloat16"),
        ("kv.quant_bits=4", "0 or 8"),
        ("sampling.temperature=nan", "finite"),
    ],
)
def test_a_setting_that_cannot_be_used_says_why(assignment, message):
    with pytest.raises(UsageError, match=message):
        checked(parse_assignments((assignment,)))


def test_a_typo_is_answered_with_the_nearest_names():
    with pytest.raises(UsageError) as caught:
        checked({"kv.numblocks": 3})
    assert "kv.num_blocks" in caught.value.remedy


def test_a_sampling_value_out_of_range_is_refused_when_it_is_applied():
    with pytest.raises(UsageError, match="temperature"):
        checked({"sampling.temperature": 9}).sampling(SamplingParams(), 100)


def test_bits_of_the_cache_are_part_of_the_engine_and_change_tokens():
    overrides = checked({"kv.quant_bits": "8"})
    assert overrides.config(CONFIG).kv_quant_bits == 8
    assert overrides.changes_tokens


def test_one_key_twice():
    with pytest.raises(UsageError, match="twice"):
        parse_assignments(("kv.num_blocks=1", "kv.num_blocks=2"))
