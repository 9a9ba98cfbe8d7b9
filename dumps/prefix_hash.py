"""Hashes of full KV blocks for a prefix cache, chained: a block's hash stands for every token up to the block's end.

The chain is that of vLLM's automatic prefix caching; the bytes hashed are our own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

HASH_BYTES = 16
NO_PARENT = b""
"""Parent of the first block of a sequence."""


class CachedBlock(NamedTuple):
    """A block that a prefix cache knows. ``parent`` is the hash of the block before it, empty for the first one."""

    block: int
    hash: bytes
    parent: bytes


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """blake2b-128 over the parent's hash and the block's token ids as little-endian int32.

    Raises struct.error for an id that does not fit in 32 bits.
    """
    return blake2b(parent + struct.pack(f"<{len(tokens)}i", *tokens), digest_size=HASH_BYTES).digest()


def chain_of(tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the full blocks of a sequence, first block first."""
    hashes: list[bytes] = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        hashes.append(block_hash(hashes[-1] if hashes else NO_PARENT, tokens[start : start + block_size]))
    return hashes
