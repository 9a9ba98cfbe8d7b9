"""What a search is of: where its examples come from, how one is run, and how what it shows is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from replay.fuzz.violation import Violation
from replay.signature import Identity

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an example showed. ``lost`` says why there is nothing else: its worker died or hung, or it cannot be run."""

    failures: tuple[Identity, ...] = ()
    violations: tuple[Violation, ...] = ()
    lost: str = ""


class Subject(Protocol[E]):
    """Examples of type ``E`` of one target. Belongs to one thread; `close` ends its workers."""

    shrinks: bool
    """Whether Hypothesis makes examples smaller; else `replay.minimise` does."""

    def strategy(self) -> st.SearchStrategy[E]: ...

    def key(self, example: E) -> str:
        """Equal for examples that show the same."""
        ...

    def run(self, example: E) -> Told: ...

    def change(self, example: E) -> str:
        """In words, what the example has to do with the dump it came from."""
        ...

    def start(self, example: E) -> Path:
        """That dump."""
        ...

    def dump(self, example: E, identity: Identity) -> bytes:
        """A dump of the failure. Raises `ReplayError`."""
        ...

    def evidence(self, example: E) -> tuple[str, bytes]:
        """A file that shows what an example was, as its suffix and content."""
        ...

    def job(self) -> Mapping[str, Any]:
        """What `replay.targets.job.run_job` or a program's replay needs beside the dump."""
        ...

    def settings(self, example: E) -> Mapping[str, str]:
        """What a replay of `dump` may have to be given with --set, by key."""
        ...

    def model(self, example: E) -> Path | None:
        """The weights that a replay of it runs on."""
        ...

    def close(self) -> None: ...
