"""The prefix cache in a ring: hits as rare JSON at the beginning of a step, registered blocks as bytes at its end."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from dumps.prefix_hash import HASH_BYTES, NO_PARENT, CachedBlock

_COUNT = struct.Struct("<I")
BYTES_PER_BLOCK = 4 + 2 * HASH_BYTES
"""Of a registered block in a ring: its id, its hash and its parent's."""


class HitRecord(NamedTuple):
    """See PrefixHit in state.proto. The request is a serial."""

    serial: int
    num_tokens: int
    blocks: Sequence[int]
    copied_from: int | None = None


def encode_cached(cached: Sequence[CachedBlock]) -> bytes:
    """A count, then the blocks' ids, then hash and parent of each; 16 zeros stand for no parent."""
    hashes = (half for entry in cached for half in (entry.hash, entry.parent or bytes(HASH_BYTES)))
    return _COUNT.pack(len(cached)) + array("I", [entry.block for entry in cached]).tobytes() + b"".join(hashes)


def cached_size(data: bytes) -> int:
    """The bytes that `encode_cached` made of what ``data`` begins with, or all of them if there are not so many."""
    if len(data) < _COUNT.size:
        return len(data)
    return min(_COUNT.size + int(_COUNT.unpack_from(data)[0]) * BYTES_PER_BLOCK, len(data))


def decode_cached(data: bytes) -> list[CachedBlock]:
    """Raises ValueError unless ``data`` is what `encode_cached` makes. Nothing at all is no blocks."""
    if not data:
        return []
    count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else -1
    if len(data) != _COUNT.size + count * BYTES_PER_BLOCK:
        raise ValueError("the registered blocks of a record do not add up")
    blocks = array("I", data[_COUNT.size : _COUNT.size + 4 * count])
    at = _COUNT.size + 4 * count
    halves = [data[place : place + HASH_BYTES] for place in range(at, len(data), HASH_BYTES)]
    return [
        CachedBlock(block, own, parent if any(parent) else NO_PARENT)
        for block, own, parent in zip(blocks, halves[::2], halves[1::2], strict=True)
    ]


def hits_from_json(entries: Sequence[Sequence[Any]]) -> list[HitRecord]:
    """Raises ValueError or TypeError for entries that no writer makes."""
    return [
        HitRecord(int(serial), int(tokens), [int(block) for block in blocks], None if copied is None else int(copied))
        for serial, tokens, blocks, copied in entries
    ]


def disguised(cached: Sequence[CachedBlock], secret: bytes) -> list[CachedBlock]:
    """The same blocks with hashes that say nothing of the tokens: who guesses a text could confirm it by the others.

    Equal hashes stay equal, so that chains are still chains.
    """

    def disguise(value: bytes) -> bytes:
        return blake2b(value, digest_size=HASH_BYTES, key=secret).digest() if value else value

    return [CachedBlock(entry.block, disguise(entry.hash), disguise(entry.parent)) for entry in cached]
