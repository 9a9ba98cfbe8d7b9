"""Where the rows of a step put their keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from replay.engine.kv_store import KVStore

if TYPE_CHECKING:
    from replay.engine.attention import Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where consecutive rows of a step put their keys and values: flat slots of one cache, each only once.

    ``rows`` picks the rows that are written, counted from ``first_row``; None: all of them.
    """

    kv: KVStore
    first_row: int
    num_rows: int
    slots: torch.Tensor
    rows: torch.Tensor | None = None


def destinations_of(placed: Sequence[Placed]) -> list[Destination]:
    """One for each run of neighbours that share a cache."""
    found, row = [], 0
    for kv, run in groupby(placed, key=lambda one: one.kv):
        chunks = [one.chunk for one in run]
        slots = np.concatenate([kv.slots_of(c.request.blocks, c.start, c.start + c.num_tokens) for c in chunks])
        device, rows = kv.data.device, last_of_each(slots)
        found.append(
            Destination(
                kv=kv,
                first_row=row,
                num_rows=slots.size,
                slots=torch.from_numpy(slots if rows is None else slots[rows]).to(device),
                rows=None if rows is None else torch.from_numpy(rows).to(device),
            )
        )
        row += slots.size
    return found


def last_of_each(slots: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Where each slot stands last, in ascending order; None when none stands twice.

    Only a defect puts two rows into one slot. The last one then stays there: on a GPU it would be any of them.
    """
    if np.unique(slots).size == slots.size:
        return None
    _, backwards = np.unique(slots[::-1], return_index=True)
    return np.sort(slots.size - 1 - backwards)
