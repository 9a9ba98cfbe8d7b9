"""Token ids to text, one token at a time, never cutting a character in half.

A token may hold part of a multi-byte character. Such bytes wait until the character is complete; bytes that can never
become one turn into U+FFFD, as they do when the whole sequence is decoded at once.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from replay.errors import ModelUnavailable

_REPLACEMENT = "�"


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a weights folder, from its ``tokenizer.json`` alone.

    Without the truncation and padding that training tools leave in that file: they would change prompts unseen.
    Raises `ModelUnavailable` when the file is missing or is no tokenizer.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no narrower class
        raise ModelUnavailable(f"{path} cannot be read: {error}", remedy="Fetch the weights again.") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class Detokenizer(Protocol):
    """Incremental decoding of one sequence. The pieces joined equal the text of all its tokens, specials skipped."""

    def push(self, token: int) -> str:
        """The text that this token completes, which may be empty."""
        ...

    def finish(self) -> str:
        """What is still pending, with U+FFFD for an incomplete character. Nothing may be pushed afterwards."""
        ...


class Vocabulary:
    """Makes detokenizers for one tokenizer and keeps what they share."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._special = frozenset(
            token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special
        )
        self._byte_level = isinstance(tokenizer.decoder, ByteLevel)
        self._bytes: dict[int, bytes] = {}

    def detokenizer(self) -> Detokenizer:
        return _ByteLevelDetokenizer(self) if self._byte_level else _WindowDetokenizer(self.tokenizer)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for in a byte-level vocabulary. Empty for special and for unknown ids."""
        known = self._bytes.get(token)
        if known is None:
            text = None if token in self._special else self.tokenizer.id_to_token(token)
            known = self._bytes[token] = _bytes_of(text or "")
        return known


class _ByteLevelDetokenizer:
    """For byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM): the tokens' bytes through an UTF-8 decoder."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._vocabulary.token_bytes(token))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDetokenizer:
    """For every other decoder: decode a short window twice, without and with the new token, and take the difference.

    The window keeps one finished piece in front, because such decoders treat the first token of a text differently
    (SentencePiece drops its leading space).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._read = 0

    def push(self, token: int) -> str:
        self._window.append(token)
        before, after = self._texts()
        if len(after) <= len(before) or after.endswith(_REPLACEMENT):
            return ""
        self._window = self._window[self._read :]
        self._read = len(self._window)
        return after[len(before) :]

    def finish(self) -> str:
        before, after = self._texts()
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._window[: self._read]), self._decode(self._window)

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


def _byte_of_char() -> dict[str, int]:
    """The inverse of GPT-2's table, which gives every byte a printable character. Source: GPT-2, `bytes_to_unicode`."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in printable)
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_of_char()


def _bytes_of(token: str) -> bytes:
    """Added tokens are written as plain text; with characters that the table lacks they mean themselves."""
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    except KeyError:
        return token.encode()
