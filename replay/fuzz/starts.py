"""The dumps that a search starts from: what they record themselves, and what their targets need."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from dumps.errors import DumpError
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.strategies.near import near
from replay.errors import EngineNotInstalled, UsageError
from replay.fuzz.neighbours import Start
from replay.scenario.extract import scenario_of
from replay.signature import Identity, Signature
from replay.targets.job import program_target


def read(paths: Sequence[Path]) -> dict[Path, pb.RuntimeState]:
    """The states of the dumps, by absolute path. Raises `DumpError`."""
    states = {}
    for path in paths:
        try:
            with open_dump(path) as dump:
                states[path.absolute()] = state = pb.RuntimeState()
                state.CopyFrom(dump.state)
        except DumpError as error:
            if str(path) not in error.message:
                error.message = f"{path}: {error.message}"
            raise
    return states


def known(states: dict[Path, pb.RuntimeState]) -> dict[Identity, Path]:
    """The failures that the dumps record, each with the first dump of it."""
    found: dict[Identity, Path] = {}
    for path, state in states.items():
        for failure in state.failures:
            found.setdefault(Signature.recorded(failure, state).identity, path)
    return found


def engine_starts(states: dict[Path, pb.RuntimeState]) -> list[Start]:
    """Raises `UsageError` for a dump whose run cannot be played, and `DumpError` for one that contradicts itself."""
    starts = []
    for path, state in states.items():
        try:
            scenario = scenario_of(state)
            near(state)
        except UsageError as error:
            raise UsageError(f"{path}: {error}", remedy=_remedy(state) or error.remedy) from error
        except DumpError as error:
            error.message = f"{path}: {error.message}"
            raise
        starts.append(Start(path=path, state=state, scenario=scenario))
    return starts


def _remedy(state: pb.RuntimeState) -> str:
    """What to do with the dump of a program, which is searched as one."""
    if (program := program_target(state)) is None:
        return ""
    return f"search it apart: pplx-replay fuzz DUMP --target {program}"


def models(starts: Sequence[Start], named: Path | None) -> dict[Path, Path]:
    """The weights of each dump. Raises `ModelUnavailable`, `EngineNotInstalled`, and `UsageError` for a dump without
    token ids."""
    from replay.models.locate import locate

    if find_spec("torch") is None:
        raise EngineNotInstalled("torch is not installed, and --target inference needs it")
    found = {}
    for start in starts:
        if not all(visit.has_prompt_ids for visit in start.scenario.visits):
            raise UsageError(
                f"{start.path}: token ids are not in the dump, and a model needs them",
                remedy="use --target schedule, or record with --record tokens",
            )
        model = start.state.model
        found[start.path] = locate(
            name=model.name or start.state.active_model or None,
            fingerprint=model.weights_fingerprint or None,
            explicit=named.absolute() if named is not None else None,
            beside=(start.path.parent,),
        )
    return found
