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
        ("kv.quant_bits=08", "0 or 8"),
        ("kv.quant_bits=٨", "0 or 8"),
        ("kv.num_blocks=٩٦", "an integer"),
        ("kv.num_blocks=096", "an integer"),
        ("kv.num_blocks=1_000", "an integer"),
        ("kv.num_blocks= 96", "an integer"),
        ("kv.num_blocks=+96", "an integer"),
        ("kv.num_blocks=" + "9" * 5000, "an integer"),
        ("sampling.top_k=-0", "an integer"),
        ("sampling.top_p=٠", "a number"),
        ("sampling.temperature=1_0", "a number"),
        ("sampling.temperature=", "a number"),
        ("sampling.temperature=1e999", "finite"),
        ("=1", "no key"),
        ("=", "no key"),
        ("sampling.temperature=nan", "finite"),
    ],
)
def test_a_setting_that_cannot_be_used_says_why(assignment, message):
    with pytest.raises(UsageError, match=message):
        checked(parse_assignments((assignment,)))


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("kv.quant_bits=8", 8),
        ("kv.quant_bits=0", 0),
        ("kv.num_blocks=96", 96),
        ("sampling.top_k=-1", -1),
        ("sampling.top_p=.5", 0.5),
        ("sampling.temperature=1e-4", 0.0001),
        ("sampling.temperature=2", 2.0),
    ],
)
def test_numbers_as_people_write_them(assignment, value):
    (read,) = checked(parse_assignments((assignment,))).values.values()
    assert (read, type(read)) == (value, type(value))
    key = assignment.partition("=")[0]
    assert checked({key: value}).values == {key: value}  # as a client sends it


def test_a_typo_is_answered_with_the_nearest_names():
    with pytest.raises(UsageError) as caught:
        checked({"kv.numblocks": 3})
    assert "kv.num_blocks" in caught.value.remedy


def test_a_key_is_named_but_never_a_page_of_it():
    with pytest.raises(UsageError, match="no setting's name"):
        checked({"": 1})  # as a client may send it
    with pytest.raises(UsageError) as caught:
        checked({"x" * 100_000: 1})
    assert len(str(caught.value)) < 200


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
