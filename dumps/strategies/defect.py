"""A named contradiction: which rule it breaks, and where in a valid state it can be made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from dumps.schema import state_pb2 as pb
from dumps.tensors import from_le32, le32

Change = Callable[[], object]
Places = Callable[[pb.RuntimeState], Iterator[Change]]
"""Each place of a state at which a contradiction can be made, as what makes it there, the simplest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One contradiction. ``rule`` is the rule of `dumps.validate` that it breaks, and the only one.

    ``places`` yields nothing for a state that has no room for it. ``of`` names the strategy whose states have some:
    "engine" and "cache" are `dumps.strategies.valid.states`, the latter with a prefix cache, "program" is
    `dumps.strategies.programs.programs`.
    """

    name: str
    rule: str
    places: Places
    of: Literal["engine", "cache", "program"] = "engine"


def put(message: Any, **values: object) -> Change:
    """Sets fields."""

    def change() -> None:
        for name, value in values.items():
            setattr(message, name, value)

    return change


def clear(message: Any, *names: str) -> Change:
    def change() -> None:
        for name in names:
            message.ClearField(name)

    return change


def both(*changes: Change) -> Change:
    return lambda: [change() for change in changes]


def forget_steps(state: pb.RuntimeState) -> None:
    """Make it a record that kept no step, so that nothing but the pool says who holds what. It stays valid."""
    state.ClearField("steps")
    state.ClearField("trace_events")
    state.scheduler.ClearField("start")


def settle(state: pb.RuntimeState) -> None:
    """Free list, reference counts and used bytes as the block tables have them; the list keeps its order."""
    kv = state.kv
    counts = Counter(block for table in kv.tables for block in from_le32(table.blocks))
    free = [block for block in from_le32(kv.free_blocks) if not counts[block]]
    free += [block for block in range(kv.num_blocks) if not counts[block] and block not in free]
    kv.free_blocks, kv.ref_counts = le32(free), le32([counts[block] for block in range(kv.num_blocks)])
    kv.used_bytes = kv.max_bytes // kv.num_blocks * len(counts)
