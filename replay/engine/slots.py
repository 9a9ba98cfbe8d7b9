"""What every slot of a KV pool should hold by now, worked out from the plans alone. Torch-free, no contents.

A slot is known by a digest of the token ids up to its position. Two requests may read one slot exactly when their
tokens agree that far, so one comparison of 64 bits answers whose slot it is and which position's, shared prefixes
included.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay.engine.request import Request

EMPTY = np.uint64(0)
"""Nothing that anybody may read: never written since the block was handed out, or since it became free."""

UNKNOWN = np.uint64(1)
"""Written before the record begins, for tokens that it does not tell."""

MOST_NAMES = 100_000
"""Ids of writers that are kept beyond one for each slot."""

_ONE = np.uint64(1)
_REAL = np.uint64(2)  # a bit of every other digest, so that none is one of the two above
_TOKEN, _POSITION = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Digests = NDArray[np.uint64]


def prefix_digests(tokens: Sequence[int], start: int = 0, before: np.uint64 = EMPTY) -> Digests:
    """For each of `tokens`, which stand from position `start` on, a digest of all tokens up to it.

    ``before`` is the sum behind the digest of position ``start - 1``: digests are running sums of mixed (position,
    token) pairs, so they grow with a request. The mixing is the finaliser of splitmix64 (Steele, Lea and Flood 2014).
    """
    mixed = _mixed(tokens, np.arange(start, start + len(tokens), dtype=np.uint64))
    with np.errstate(over="ignore"):
        sums: Digests = np.cumsum(mixed, dtype=np.uint64) + before
    return sums


def _mixed(tokens: Sequence[int], positions: Digests) -> Digests:
    ids = np.asarray(tokens, dtype=np.int64).astype(np.uint64)
    mixed: Digests = ids * _TOKEN + (positions + _ONE) * _POSITION  # wraps, without a warning for arrays
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


class Expected:
    """The digests that a request's slots must have, by position; they grow with its tokens.

    A request whose token ids were not recorded stands for itself alone: its digests are made of its id.
    """

    def __init__(self, request: Request) -> None:
        self.known = min(request.tokens[: request.num_prompt], default=0) >= 0
        self._request = request
        self._salt = np.uint64(0 if self.known else hash(request.id) & (2**64 - 1))
        self._sums: Digests = np.zeros(0, dtype=np.uint64)
        self._size = 0

    def upto(self, stop: int) -> Digests:
        """Digests of positions ``0 .. stop - 1``, a view."""
        if stop > self._size:
            self._make_room(stop)
            new = prefix_digests(self._request.tokens[self._size : stop], self._size, self.last)
            self._sums[self._size : stop] = new
            self._size = stop
        return self._sums[:stop] | _REAL

    @property
    def last(self) -> np.uint64:
        """The sum up to the last position that was worked out."""
        return self._sums[self._size - 1] if self._size else self._salt

    def _make_room(self, stop: int) -> None:
        if stop > self._sums.size:
            grown = np.zeros(max(stop, 2 * self._sums.size, 64), dtype=np.uint64)
            grown[: self._size] = self._sums[: self._size]
            self._sums = grown


class SlotLedger:
    """Digest, writer, position and step of every slot, by flat slot number (block times block size plus place).

    ``digest`` says what may be read. Writer, position and step stay when a block is given back: they are what a reader
    of a stale slot really gets. -1 in ``written_step`` stands for a step that is not known. ``vague`` marks slots whose
    writer's token ids were not recorded.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        slots = num_blocks * block_size
        self.block_size = block_size
        self.digest: Digests = np.full(slots, EMPTY)
        self.written_step: NDArray[np.int64] = np.full(slots, -1, dtype=np.int64)
        self.position: NDArray[np.int64] = np.full(slots, -1, dtype=np.int64)
        self.vague: NDArray[np.bool_] = np.zeros(slots, dtype=bool)
        self._writer: NDArray[np.int32] = np.full(slots, -1, dtype=np.int32)
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._places = np.arange(block_size, dtype=np.int64)

    def slots(self, blocks: Sequence[int], stop: int) -> NDArray[np.int64]:
        """Flat slots of positions ``0 .. stop - 1`` of a sequence whose block table is `blocks`."""
        table = np.asarray(blocks[: -(-stop // self.block_size)], dtype=np.int64)
        return (table[:, None] * self.block_size + self._places).ravel()[:stop]

    def write(
        self,
        slots: NDArray[np.int64],
        digests: Digests,
        *,
        writer: str,
        start: int,
        steps: NDArray[np.int64],
        vague: bool = False,
    ) -> None:
        """Consecutive positions of one request from `start` on are written, each by its step."""
        number = self._number(writer)
        self.digest[slots] = digests
        self.written_step[slots] = steps
        self.position[slots] = np.arange(start, start + slots.size)
        self.vague[slots] = vague
        self._writer[slots] = number

    def _number(self, writer: str) -> int:
        number = self._numbers.get(writer)
        return self._new_number(writer) if number is None else number

    def _new_number(self, writer: str) -> int:
        if len(self._names) > MOST_NAMES + self._writer.size:  # more than slots can name: most have no slot any more
            named, places = np.unique(self._writer, return_inverse=True)
            self._names = [self._names[number] if number >= 0 else "" for number in named.tolist()]
            self._writer = np.where(self._writer < 0, -1, places).astype(np.int32)
            self._numbers = {name: number for number, name in enumerate(self._names)}
        self._numbers[writer] = len(self._names)
        self._names.append(writer)
        return self._numbers[writer]

    def writer(self, slot: int) -> str | None:
        number = int(self._writer[slot])
        return self._names[number] if number >= 0 else None

    def clear(self, blocks: Collection[int]) -> None:
        """Nobody may read these blocks' slots until they are written again."""
        by_block = self.digest.reshape(-1, self.block_size)
        for block in blocks:
            by_block[block] = EMPTY

    def trust(self, block: int) -> None:
        """Anybody may read this block's slots: what they hold is not known."""
        self.digest[block * self.block_size : (block + 1) * self.block_size] = UNKNOWN

    def copied(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, list[NDArray[Any]]]]:
        """What the targets of (source, target) copies will hold: for `paste`, after clearing."""
        size = self.block_size
        return [(to, [one[at * size : (at + 1) * size].copy() for one in self._arrays]) for at, to in pairs]

    def paste(self, copies: Sequence[tuple[int, list[NDArray[Any]]]]) -> None:
        size = self.block_size
        for to, contents in copies:
            for one, content in zip(self._arrays, contents, strict=True):
                one[to * size : (to + 1) * size] = content

    @property
    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self.digest, self.written_step, self.position, self.vague, self._writer
