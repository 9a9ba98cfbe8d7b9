"""What a play is made with and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dumps.schema import state_pb2 as pb
from dumps.schema.writer import SectionData
from replay.engine.block_checks import StampedCache
from replay.engine.engine import EngineHooks
from replay.engine.failure import Failure
from replay.engine.request import FinishCause, Request
from replay.engine.schedule import Executor, StopCheck
from replay.scenario.scenario import Scenario, Visit
from replay.signature import Identity, Signature


class Ended(StrEnum):
    """Why a play came to its end. Only DEADLINE depends on the machine."""

    WANTED = "wanted"
    DONE = "done"
    EXCEPTION = "exception"
    MAX_STEPS = "max-steps"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What became of a visit: the token ids drawn for it, and what ended it (None: it was not over)."""

    id: str
    output: tuple[int, ...]
    cause: FinishCause | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a play showed. ``failures`` stand in order of time, as in a dump; ``signature`` is that of the wanted one,
    or of the last where none was wanted or it did not come; None without any.

    ``steps`` were taken, and at most ``peak_used_blocks`` were in use after one. ``guessed_from`` is the first step in
    which an answer went on beyond its record; None where none did, or a model drew them. ``answers`` are those of the
    visits that came, in order of arrival.
    """

    failures: tuple[Failure, ...]
    signature: Signature | None
    ended: Ended
    steps: int
    peak_used_blocks: int
    guessed_from: int | None
    answers: tuple[Answered, ...]

    def shows(self, identity: Identity) -> bool:
        """Whether a failure with this identity was seen."""
        return any(Signature.of(failure).identity == identity for failure in self.failures)


class Contents(Protocol):
    """KV blocks of one moment, copied."""

    def put(self, state: pb.RuntimeState) -> list[SectionData]:
        """Name the blocks in a dump's ``state``, and give the sections that belong to them."""
        ...


class Watch(EngineHooks, Protocol):
    """A `FailureWatch` that also follows the steps, and copies what a dump of this moment holds of the cache."""

    def explain(self, failure: Failure, request: Request) -> Failure: ...

    def collect(self) -> Contents: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What computes one play. ``watching`` makes the watch of failures over the list of running requests; ``hooks``
    act behind the block checks and before a recorder, ``damage`` behind it."""

    executor: Executor
    stop_check: StopCheck
    bytes_per_block: int
    kv: StampedCache | None = None
    watching: Callable[[Sequence[Request]], Watch] | None = None
    hooks: tuple[EngineHooks, ...] = ()
    damage: tuple[EngineHooks, ...] = ()


class Player(Protocol):
    """Computes plays with a model: `replay.scenario.model_player.ModelPlayer` loads one and plays many."""

    @property
    def digests(self) -> bool:
        """Whether samples have digests of their logits."""
        ...

    def parts(self, scenario: Scenario) -> Parts:
        """Fresh ones, with an empty cache. Raises `UsageError` for a scenario that this model cannot compute."""
        ...

    def describe(self, state: pb.RuntimeState) -> None:
        """Say in a dump who computed: platform, kernels, threads."""
        ...


class Recorder(EngineHooks, Protocol):
    """A hook that is also told what no step's plan or outcome holds."""

    def came(self, visit: Visit, request: Request) -> None: ...

    def failed(self, failure: Failure) -> None: ...
