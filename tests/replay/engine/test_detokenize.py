"""Incremental decoding against the tokenizer's own decoding of the whole sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from replay.engine.detokenize import Vocabulary, load_tokenizer
from tests.tiny import tiny_tokenizer

BYTE_LEVEL = tiny_tokenizer()


def sentencepiece_like() -> Tokenizer:
    """Pieces with a leading underline for spaces, and bytes for what has no piece, as Llama 2's tokenizer."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁cat", "s", "é", "▁a"]
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    return tokenizer


SENTENCEPIECE = sentencepiece_like()


def pieces(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    stream = Vocabulary(tokenizer).detokenizer()
    return [*(stream.push(token) for token in tokens), stream.finish()]


@given(st.lists(st.integers(0, 330), max_size=40))
def test_any_tokens_of_a_byte_level_vocabulary(tokens):
    assert "".join(pieces(BYTE_LEVEL, tokens)) == BYTE_LEVEL.decode(tokens, skip_special_tokens=True)


@given(st.text(max_size=30))
def test_no_piece_of_valid_text_holds_a_broken_character(text):
    tokens = BYTE_LEVEL.encode(text).ids
    found = pieces(BYTE_LEVEL, tokens)
    assert "".join(found) == BYTE_LEVEL.decode(tokens, skip_special_tokens=True)
    assert "�" in text or not any("�" in piece for piece in found)


@given(st.lists(st.integers(0, len(SENTENCEPIECE.get_vocab()) - 1), max_size=30))
def test_valid_text_of_a_byte_fallback_vocabulary(tokens):
    whole = SENTENCEPIECE.decode(tokens, skip_special_tokens=True)
    if "�" not in whole:
        assert "".join(pieces(SENTENCEPIECE, tokens)) == whole


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE])
def test_a_character_in_four_tokens_comes_out_with_its_last_one(tokenizer):
    tokens = [token for token in tokenizer.encode("🦜").ids if token > 2]
    assert len(tokens) == 4
    assert pieces(tokenizer, tokens) == ["", "", "", "🦜", ""]


def test_an_unfinished_character_becomes_one_replacement_character():
    tokens = BYTE_LEVEL.encode("é🦜").ids
    assert "".join(pieces(BYTE_LEVEL, tokens[:-1])) == "é�"


def test_special_and_unknown_tokens_have_no_text():
    assert "".join(pieces(BYTE_LEVEL, [2, 319, 5000, 0])) == BYTE_LEVEL.decode([319])


def test_an_added_token_is_its_own_text():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("<tool call>", special=False)])
    assert "".join(pieces(tokenizer, tokenizer.encode("a<tool call>b").ids)) == "a<tool call>b"


def test_truncation_and_padding_left_in_the_file_do_not_touch_prompts(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "a text of more than four tokens"
    assert load_tokenizer(tmp_path).encode(text).ids == tiny_tokenizer().encode(text).ids
