"""A file that is damaged or forged by numbers which can be kept: the same ones change it in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dumps.strategies.damage import Draw, damage
from dumps.strategies.forge import forged

KINDS: dict[str, Callable[[bytes, Draw], bytes]] = {"damaged": damage, "forged": forged}


def changed(data: bytes, kind: str, draws: Sequence[int]) -> bytes:
    """What becomes of ``data``. A number that is missing or out of its range is the lowest one.

    Raises `DumpError` where bytes that are no dump are to be forged.
    """
    numbers = iter(draws)

    def draw(low: int, high: int) -> int:
        number = next(numbers, low)
        return number if low <= number <= high else low

    return KINDS[kind](data, draw)
