"""Token ids to text in the gateway itself, as frontends of split servers do it. For byte-level vocabularies."""

from __future__ import annotations

import codecs
import json
from pathlib import Path


class Vocabulary:
    """The bytes that each token id stands for, from a ``tokenizer.json``. Special tokens stand for none."""

    def __init__(self, path: Path) -> None:
        with path.open(encoding="utf-8") as file:
            document = json.load(file)
        special = {token["id"] for token in document["added_tokens"] if token["special"]}
        table = _byte_of_char()
        self.bytes_of = {
            token: b"" if token in special else bytes(table[char] for char in text)
            for text, token in document["model"]["vocab"].items()
        }


class Detokenizer:
    """Holds back a character that is not whole yet. At the end it lets its bytes go as they are."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def pending(self) -> bytes:
        return self._utf8.getstate()[0]

    def push(self, token: int) -> bytes:
        return self._utf8.decode(self._vocabulary.bytes_of.get(token, b"")).encode()

    def finish(self) -> bytes:
        return self.pending


class MendedDetokenizer(Detokenizer):
    """Ends in U+FFFD where the output ends inside a character."""

    def finish(self) -> bytes:
        return self._utf8.decode(b"", final=True).encode()


def _byte_of_char() -> dict[str, int]:
    """Byte-level vocabularies write each byte as a character of its own: the printable ones as themselves, the others
    from U+0100 on, in their order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
