"""Hypothesis strategies for states with one contradiction, by name: `validate` finds its rule, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from dumps.strategies import defects_kv, defects_prefix, defects_program, defects_requests, defects_schedule
from dumps.strategies.defect import Defect
from dumps.strategies.programs import programs
from dumps.strategies.valid import states

__all__ = ["DEFECTS", "Defect", "defective", "with_defect"]

DrawFn = Callable[[st.SearchStrategy[Any]], Any]

DEFECTS: tuple[Defect, ...] = (
    *defects_requests.DEFECTS,
    *defects_kv.DEFECTS,
    *defects_schedule.DEFECTS,
    *defects_prefix.DEFECTS,
    *defects_program.DEFECTS,
)
"""At least one for each rule."""

_TRIES = 5
"""States drawn until one has room for a defect: for the rarest, one in twenty has."""


def spoilt(draw: DrawFn, state: pb.RuntimeState, defect: Defect) -> bool:
    """Make the contradiction at one of its places in ``state``. False where the state has no room for it."""
    places = list(defect.places(state))
    if places:
        draw(st.sampled_from(places))()
    return bool(places)


@st.composite
def with_defect(draw: DrawFn, defect: Defect) -> pb.RuntimeState:
    """A state that is valid but for ``defect``. Shrinks to the least state with room for it."""
    for _ in range(_TRIES):
        made = pb.RuntimeState()
        made.CopyFrom(draw(bases(defect)))
        if spoilt(draw, made, defect):
            return made
    reject()


@st.composite
def defective(draw: DrawFn) -> tuple[Defect, pb.RuntimeState]:
    """Any defect, and a state with it."""
    defect: Defect = draw(st.sampled_from(DEFECTS))
    return defect, draw(with_defect(defect))


def bases(defect: Defect) -> st.SearchStrategy[pb.RuntimeState]:
    """Valid states, many of which have room for ``defect``."""
    if defect.of == "program":
        return programs()
    return states(prefix_cache=True) if defect.of == "cache" else states()
