"""Target load: files that are damaged, forged, or written anew, through the reader."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from dumps.errors import InvalidState
from dumps.schema import state_pb2 as pb
from dumps.strategies.near import near
from replay.fuzz.changed_file import KINDS, changed
from replay.fuzz.load_job import LOAD_FUNCTION
from replay.fuzz.subject import Told
from replay.fuzz.violation import Violation
from replay.fuzz.workers import Workers
from replay.isolate.result import Result
from replay.signature import Identity

MOST_FILES = 16
"""Of one example: handing a file to a worker takes longer than reading it."""

DrawFn = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True, slots=True, repr=False)
class Original:
    """A dump as it lies there, and what is in it."""

    path: Path
    data: bytes
    state: pb.RuntimeState


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadExample:
    """``kind`` is "damaged" or "forged", and ``draws`` are the numbers that did it, for each of a few files; or "near",
    with a ``state``."""

    original: Original
    kind: str
    draws: tuple[tuple[int, ...], ...] = ()
    state: bytes = b""


class LoadSubject:
    """A `Subject`. It finds no failure of a service: all that can break is ours."""

    shrinks = True

    def __init__(self, originals: list[Original], *, seconds: float, load_s: float) -> None:
        self._originals = originals
        self._workers = Workers(LOAD_FUNCTION, seconds=seconds, load_s=load_s)

    def strategy(self) -> st.SearchStrategy[LoadExample]:
        return st.one_of([one for original in self._originals for one in _strategies(original)])

    def key(self, example: LoadExample) -> str:
        return f"{example.original.path} {example.kind} {example.draws} {example.state!r}"

    def change(self, example: LoadExample) -> str:
        return "a neighbour, written and read" if example.kind == "near" else f"the file, {example.kind}"

    def start(self, example: LoadExample) -> Path:
        return example.original.path

    def run(self, example: LoadExample) -> Told:
        job = {
            "dump": str(example.original.path),
            "target": "load",
            "kind": example.kind,
            "draws": [list(draws) for draws in example.draws],
            "state": base64.b64encode(example.state).decode("ascii"),
        }
        return _told(self._workers.run(job))

    def dump(self, example: LoadExample, identity: Identity) -> bytes:
        raise AssertionError("a reader has no failures of a service")

    def evidence(self, example: LoadExample) -> tuple[str, bytes]:
        """The file itself, the first of several that shows it; of a neighbour, its state without a file's layout."""
        if example.kind == "near":
            return "state.pb", example.state
        alone = [replace(example, draws=(draws,)) for draws in example.draws]
        shown = next((one for one in alone if len(alone) == 1 or self.run(one).violations), alone[0])
        return "pplx", changed(example.original.data, example.kind, shown.draws[0])

    def job(self) -> Mapping[str, Any]:
        return {"target": "schedule"}

    def settings(self, example: LoadExample) -> Mapping[str, str]:
        return {}

    def model(self, example: LoadExample) -> Path | None:
        return None

    def close(self) -> None:
        self._workers.close()


def _strategies(original: Original) -> list[st.SearchStrategy[LoadExample]]:
    found = [_changes(original, kind) for kind in KINDS]
    try:
        neighbours = near(original.state)
    except InvalidState:
        return found

    def example(state: pb.RuntimeState) -> LoadExample:
        return LoadExample(original=original, kind="near", state=state.SerializeToString(deterministic=True))

    return [*found, neighbours.map(example)]


@st.composite
def _changes(draw: DrawFn, original: Original, kind: str) -> LoadExample:
    files: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, MOST_FILES))):
        draws: list[int] = []

        def number(low: int, high: int, draws: list[int] = draws) -> int:
            draws.append(draw(st.integers(low, high)))
            return draws[-1]

        KINDS[kind](original.data, number)
        files.append(tuple(draws))
    return LoadExample(original=original, kind=kind, draws=tuple(files))


def _told(result: Result) -> Told:
    """A worker that died or hung over a file is no answer that a reader may give."""
    if result.error is not None:
        return Told(violations=(Violation(rule="reader", message=f"{result.error.kind}: {result.error.message}"),))
    try:
        violations = [Violation.from_json(one) for one in (result.report or {})["violations"]]
    except (KeyError, TypeError) as error:
        return Told(lost=f"the worker told something else than an example: {error!r:.200}")
    if tried := result.guard.get("refused"):
        violations.append(Violation(rule="isolation", message=f"a reader tried: {str(tried)[:200]}"))
    return Told(violations=tuple(violations))
