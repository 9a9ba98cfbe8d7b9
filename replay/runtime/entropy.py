"""Entropy of a replay: the bytes that the recorded program drew, given back in order.

Each source has a queue for each size, so that a draw which the program no longer makes shifts no others. Where nothing
was recorded (record level "shape"), or a queue has run out, bytes come from a stream that is keyed by the dump's id and
is the same in every replay. They are counted: a report calls them synthesised. Nothing raises for a missing draw; what
differs from the recording is told in ``findings``.

Covered, early-bound names included: ``os.urandom`` and ``os.getrandom``, and with them ``secrets``, ``uuid.uuid4``,
``random.SystemRandom``, ``numpy.random.default_rng()`` and ``SeedSequence()`` without entropy; ``uuid.uuid1``;
``random.seed()`` and ``random.Random()`` without a seed; the global state of ``random`` and of ``numpy.random``.

Not covered, because no Python function is asked: ssl and OpenSSL, cryptography, ``_random.Random``, and anything in C
that asks the system itself. Hash randomisation is fixed when a process starts: see `needs_reexec`.
"""

from __future__ import annotations

import hashlib
import operator
import os
import random
import sys
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from dumps.random_state import SIZE, TwisterState
from dumps.record.seams.entropy import name_temporary_files_anew
from dumps.record.seams.late import when_imported
from dumps.record.seams.rebind import StandIn, rebind
from dumps.schema import state_pb2 as pb

FIXED_HASH_SEED = "0"
_MAX_HASH_SEED = 2**32 - 1
_UUID_SIZE = 16


@dataclass(kw_only=True, eq=False)
class Entropy:
    """The draws of one recording. Methods may be called from any thread.

    ``key`` names the stream of made-up bytes: the dump's id. ``replayed`` and ``synthesised`` count draws by source;
    ``findings`` says in a sentence each where the replay drew otherwise than the recorded program.
    """

    draws: Sequence[pb.EntropyDraw] = field(repr=False)
    key: str
    replayed: Counter[str] = field(default_factory=Counter)
    synthesised: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._queues: dict[tuple[str, int], deque[bytes]] = {}
        self._recorded = Counter(draw.source for draw in self.draws)
        for draw in self.draws:
            self._queues.setdefault((draw.source, draw.size), deque()).append(draw.data)
        self._streamed: Counter[tuple[str, int]] = Counter()
        self._told: set[tuple[str, int]] = set()
        self._lock = threading.RLock()

    def draw(self, source: str, size: int) -> bytes:
        """``size`` bytes of ``source``: the next ones that were recorded, else made-up ones."""
        recorded = self._next(source, size)
        return recorded if recorded is not None else self._synthesise(source, size)

    def leftovers(self) -> list[str]:
        """What was recorded and never drawn, a sentence for each source and size."""
        with self._lock:
            return [
                f"{len(queue)} recorded draws of {size} bytes from {source} were not made in the replay"
                for (source, size), queue in sorted(self._queues.items())
                if queue
            ]

    def _next(self, source: str, size: int) -> bytes | None:
        with self._lock:
            queue = self._queues.get((source, size))
            if queue:
                data = queue.popleft()
                if len(data) == size:
                    self.replayed[source] += 1
                    return data
            elif self._recorded[source] and (source, size) not in self._told:
                self._told.add((source, size))
                self.findings.append(self._difference(source, size, known=queue is not None))
            return None

    def _difference(self, source: str, size: int, *, known: bool) -> str:
        if known:
            return f"the program drew {size} bytes from {source} more often than it was recorded to"
        sizes = sorted({other for other_source, other in self._queues if other_source == source})
        return f"the program drew {size} bytes from {source}; recorded are draws of {', '.join(map(str, sizes))} bytes"

    def _synthesise(self, source: str, size: int) -> bytes:
        with self._lock:
            number = self._streamed[source, size]
            self._streamed[source, size] += 1
            self.synthesised[source] += 1
        name = f"{self.key}\n{source}\n{size}\n{number}"
        return hashlib.shake_256(name.encode()).digest(size)

    def _state(self, source: str) -> TwisterState | None:
        """The next recorded state of a generator; None, and counted, where there is none that can be used."""
        data = self._next(source, SIZE)
        if data is None:
            return None
        try:
            return TwisterState.from_bytes(data)
        except ValueError as error:
            with self._lock:
                self.replayed[source] -= 1
                self.findings.append(f"the recorded {source} cannot be used: {error}")
            return None

    def _seed_number(self, source: str) -> int:
        return int.from_bytes(self._synthesise(source, SIZE), "little")

    def install(self) -> Callable[[], None]:
        """Be the entropy of this process; returns the way back."""
        real_seed = random.Random.seed
        bound_seed = random.seed
        random_before = random.getstate()
        undo_numpy: list[Callable[[], None]] = []

        def seed(generator: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None:
                self._seed(generator, real_seed)
            else:
                real_seed(generator, a, version)

        random.Random.seed = seed  # type: ignore[method-assign,assignment]
        name_temporary_files_anew()
        replacements = {getattr(os, name): getattr(self, f"_{name}") for name in ("urandom", "getrandom")}
        stand_ins: dict[Any, Any] = {real: StandIn(real, function) for real, function in replacements.items()}
        stand_ins[uuid.uuid1] = StandIn(uuid.uuid1, self._uuid1(uuid.uuid1))
        stand_ins[bound_seed] = getattr(bound_seed, "__self__", random).seed
        undo_names = rebind(stand_ins)
        self._set_random_state()
        imported_before = "numpy.random" in sys.modules
        forget_numpy = when_imported(
            "numpy.random", lambda module: undo_numpy.append(self._set_numpy_state(module, imported_before))
        )

        def undo() -> None:
            forget_numpy()
            for each in undo_numpy:
                each()
            undo_names()
            random.Random.seed = real_seed  # type: ignore[method-assign]
            random.setstate(random_before)
            name_temporary_files_anew()

        return undo

    def _urandom(self, size: Any, /) -> bytes:
        number = operator.index(size)
        if number < 0:
            raise ValueError("negative argument not allowed")
        return self.draw("os.urandom", number)

    def _getrandom(self, size: Any, flags: int = 0) -> bytes:
        number = operator.index(size)
        if number < 0:
            raise OSError(22, os.strerror(22))
        return self.draw("os.getrandom", number)

    def _uuid1(self, real: Callable[..., uuid.UUID]) -> Callable[..., uuid.UUID]:
        def uuid1(node: int | None = None, clock_seq: int | None = None) -> uuid.UUID:
            if node is not None and clock_seq is not None:
                return real(node, clock_seq)  # the clock's matter alone
            recorded = self._next("uuid.uuid1", _UUID_SIZE)
            if recorded is not None:
                return uuid.UUID(bytes=recorded)
            made_up = int.from_bytes(self._synthesise("uuid.uuid1", 8), "little")
            multicast = 1 << 40  # says that a node id is no real hardware address
            return real(
                node if node is not None else made_up & (1 << 48) - 1 | multicast,
                clock_seq if clock_seq is not None else made_up >> 50,
            )

        return uuid1

    def _seed(self, generator: random.Random, real_seed: Callable[..., None]) -> None:
        state = self._state("random.seed")
        if state is not None:
            generator.setstate(state.for_random())
        else:
            real_seed(generator, self._seed_number("random.seed"))

    def _set_random_state(self) -> None:
        state = self._state("random.state")
        if state is not None:
            random.setstate(state.for_random())
        else:
            random.seed(self._seed_number("random.state"))

    def _set_numpy_state(self, module: ModuleType, imported_before: bool) -> Callable[[], None]:
        """Where numpy is imported later and no state was recorded, it seeds itself from draws of `os.urandom`."""
        before = module.get_state(legacy=False)
        state = self._state("numpy.random.state")
        if state is not None:
            module.set_state(state.for_numpy())
        elif imported_before:
            words = hashlib.shake_256(self._synthesise("numpy.random.state", SIZE)).digest(32)
            module.seed([int.from_bytes(words[at : at + 4], "little") for at in range(0, 32, 4)])
        return lambda: module.set_state(before)


def needs_reexec(program: pb.Program, environ: Mapping[str, str]) -> str | None:
    """The PYTHONHASHSEED that a replay of ``program`` must be started with; None where ``environ`` has it already.

    A seed that was not fixed when it was recorded cannot be known: such a program gets "0", and `hash_seed_finding`
    says so.
    """
    wanted = program.hash_seed if _is_fixed(program.hash_seed) else FIXED_HASH_SEED
    return None if environ.get("PYTHONHASHSEED") == wanted else wanted


def hash_seed_finding(program: pb.Program) -> str:
    """What to say of the hash seed in a report; empty where it was recorded."""
    if _is_fixed(program.hash_seed):
        return ""
    return (
        "hash randomisation was on when this was recorded and its seed is not known; the replay runs with "
        "PYTHONHASHSEED=0, so sets of strings may be walked in another order than they were. "
        "Set PYTHONHASHSEED where you record to fix it."
    )


def _is_fixed(seed: str) -> bool:
    return seed.isascii() and seed.isdigit() and len(seed) <= 10 and int(seed) <= _MAX_HASH_SEED
