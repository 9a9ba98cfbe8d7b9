"""Prompts into tokens, and the bound that spares encoding what can never fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from replay.engine.defects import Defects
from replay.engine.schedule import EngineConfig
from replay.openai_wire import COMPLETIONS, ApiError
from replay.serving.prompts import PromptEncoder
from replay.serving.requests import parse_call
from tests.tiny import SPECIALS


@pytest.fixture(scope="module")
def encoder(tiny_model: Path) -> PromptEncoder:
    return PromptEncoder(tiny_model)


@given(st.lists(st.one_of(st.text(), st.sampled_from([*SPECIALS, "the and", "é", "\U0001f469"]))).map("".join))
def test_no_text_has_fewer_tokens_than_the_bound(encoder, text):
    assert encoder.fewest_tokens(text) <= len(encoder.encode(text, add_special_tokens=False))


def test_the_bound_grows_with_the_text(encoder):
    assert encoder.fewest_tokens("a" * 10_000) > 500


@pytest.mark.parametrize("what", ["normaliser", "special token"])
def test_where_text_can_be_swallowed_there_is_no_bound(tiny_model, tmp_path, what):
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    if what == "normaliser":
        tokenizer.normalizer = normalizers.Strip()
    else:
        tokenizer.add_special_tokens([AddedToken("<|gap|>", special=True, rstrip=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert PromptEncoder(tmp_path).fewest_tokens("<|gap|>" + " " * 10_000) == 0


def test_a_prompt_that_no_pool_of_this_size_holds_is_refused_unless_that_is_the_defect(encoder):
    call = parse_call(COMPLETIONS, {"model": "tiny", "prompt": [5] * 20}, vocab_size=320)
    small = EngineConfig(num_blocks=4, block_size=4, max_model_len=21)
    with pytest.raises(ApiError, match="needs 5 KV blocks; the server has 4"):
        encoder.prompts(call, small, 320)
    unchecked = Defects(prompt_unchecked=True)
    [prompt] = encoder.prompts(call, small, 320, defects=unchecked)
    assert len(prompt.tokens) == 20
    with pytest.raises(ApiError, match="maximum context length"):
        encoder.prompts(call, EngineConfig(num_blocks=4, block_size=4, max_model_len=20), 320, defects=unchecked)
