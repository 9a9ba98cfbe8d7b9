"""Prompts into tokens, and the bound that spares encoding what can never fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from replay.serving.prompts import PromptEncoder
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
