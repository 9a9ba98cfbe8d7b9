"""The state of a Mersenne Twister as bytes: that of ``random.Random``, and of numpy's global generator.

Layout, little-endian: 624 words of uint32, position uint32 (0 to 624), one uint32 that is 1 where a spare normal
deviate is kept and else 0, that deviate as float64 (0.0 without one). 2512 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

WORDS = 624
_LAYOUT = struct.Struct(f"<{WORDS}IIId")
SIZE = _LAYOUT.size
_RANDOM_VERSION = 3  # of the tuple that random.getstate() gives, in every Python since 3.2


@dataclass(frozen=True, slots=True)
class TwisterState:
    """``gauss`` is the spare normal deviate that the next call for one returns, None without one."""

    words: tuple[int, ...]
    position: int
    gauss: float | None

    def to_bytes(self) -> bytes:
        return _LAYOUT.pack(*self.words, self.position, self.gauss is not None, self.gauss or 0.0)

    @classmethod
    def from_bytes(cls, data: bytes) -> TwisterState:
        """Raises ValueError for anything but what `to_bytes` gives."""
        if len(data) != SIZE:
            raise ValueError(f"a Mersenne Twister's state has {SIZE} bytes, this has {len(data)}")
        *words, position, has_gauss, gauss = _LAYOUT.unpack(data)
        if position > WORDS or has_gauss > 1:
            raise ValueError(f"no Mersenne Twister's state: position {position}, flag {has_gauss}")
        return cls(tuple(words), position, gauss if has_gauss else None)

    @classmethod
    def of_random(cls, state: tuple[Any, ...]) -> TwisterState:
        """From ``random.getstate()``. Raises ValueError for the state of another generator."""
        version, internal, gauss = state
        if version != _RANDOM_VERSION or len(internal) != WORDS + 1:
            raise ValueError(f"random.getstate() of version {version} is not known")
        return cls(tuple(internal[:WORDS]), internal[WORDS], gauss)

    def for_random(self) -> tuple[Any, ...]:
        """For ``random.setstate()``."""
        return _RANDOM_VERSION, (*self.words, self.position), self.gauss

    @classmethod
    def of_numpy(cls, state: Mapping[str, Any]) -> TwisterState:
        """From ``numpy.random.get_state(legacy=False)``. Raises ValueError for another bit generator."""
        if state["bit_generator"] != "MT19937":
            raise ValueError(f"numpy's global generator is {state['bit_generator']}, not MT19937")
        words = tuple(int(word) for word in state["state"]["key"])
        return cls(words, int(state["state"]["pos"]), float(state["gauss"]) if state["has_gauss"] else None)

    def for_numpy(self) -> dict[str, Any]:
        """For ``numpy.random.set_state()``."""
        return {
            "bit_generator": "MT19937",
            "state": {"key": np.array(self.words, dtype=np.uint32), "pos": self.position},
            "has_gauss": int(self.gauss is not None),
            "gauss": self.gauss or 0.0,
        }
