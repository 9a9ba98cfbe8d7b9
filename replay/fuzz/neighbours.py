"""Examples of the targets with an engine: neighbours of the dumps, and fresh loads of their engines, as scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import strategies as st

from dumps.errors import DumpError
from dumps.schema import state_pb2 as pb
from dumps.strategies.near import near
from replay.engine.quirks import Quirk
from replay.errors import ReplayError
from replay.fuzz.loads import fresh_loads
from replay.scenario.change import without
from replay.scenario.door import refused
from replay.scenario.extract import scenario_of
from replay.scenario.scenario import Scenario

UNCHANGED = "the dump as it is"
FRESH = "a fresh load of its engine"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Start:
    """A dump that the search starts from, and the scenario of its run."""

    path: Path
    state: pb.RuntimeState
    scenario: Scenario


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Example:
    """``scenario`` is what is played, None where a server would have refused all of its requests, or it cannot be
    played. ``change`` says in words what it has to do with the dump ``start``."""

    start: Start
    scenario: Scenario | None
    change: str

    @property
    def key(self) -> str:
        return f"{self.start.path} {self.scenario.digest if self.scenario is not None else ''}"


def examples(starts: Sequence[Start], quirks: Sequence[Quirk]) -> st.SearchStrategy[Example]:
    """Examples around ``starts`` with the ``quirks`` in force beside those of each dump.

    Who a server would refuse does not come, and what every step reads is checked. Shrinks toward the first dump.
    """
    return st.one_of([one for start in starts for one in (_near(start, quirks), _fresh(start, quirks))])


def _near(start: Start, quirks: Sequence[Quirk]) -> st.SearchStrategy[Example]:
    def example(state: pb.RuntimeState) -> Example:
        try:
            scenario = admitted(scenario_of(state), quirks)
        except (DumpError, ReplayError):  # what a dump that contradicts itself says may run, and its neighbour not
            scenario = None
        return Example(start=start, scenario=scenario, change=_told(state))

    return near(start.state).map(example)


def _fresh(start: Start, quirks: Sequence[Quirk]) -> st.SearchStrategy[Example]:
    like = replace(
        start.scenario, quirks=tuple(one for one in start.scenario.quirks if "request" not in one.parameters)
    )

    def example(scenario: Scenario) -> Example:
        return Example(start=start, scenario=admitted(scenario, quirks), change=FRESH)

    return fresh_loads(like).map(example)


def admitted(scenario: Scenario, quirks: Sequence[Quirk]) -> Scenario | None:
    """The scenario with more quirks and with its checks on, of those whom a server would let in."""
    own = {quirk.name for quirk in scenario.quirks}
    scenario = replace(
        scenario, checks=True, quirks=(*scenario.quirks, *(quirk for quirk in quirks if quirk.name not in own))
    )
    scenario = without(scenario, refused(scenario).keys())
    return scenario if scenario.visits else None


def _told(state: pb.RuntimeState) -> str:
    """The changes that a neighbour says it has."""
    notes = [entry.note for entry in state.ledger if entry.path == "requests"]
    return notes[-1].partition("changed: ")[2] if notes and "changed: " in notes[-1] else UNCHANGED
