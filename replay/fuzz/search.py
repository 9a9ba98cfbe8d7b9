"""The search itself: Hypothesis draws examples, and every failure or broken property that nobody knew is handed on.

Hypothesis ends a run with what it found first. So the search is a number of runs, each of which passes over what was
found before it; the first one runs the examples that its database has kept, and only those.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from unittest import SkipTest

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import HypothesisException, HypothesisWarning

from replay.fuzz.subject import Subject, Told
from replay.fuzz.violation import Violation
from replay.signature import Identity

E = TypeVar("E")
Thing = Identity | tuple[str, str]
"""What is found once: a failure of the service, or a broken property by `Violation.identity`."""

MOST_KEPT = 10_000
"""Answers that are remembered: Hypothesis asks for an example again when it has found one."""


class TimeIsUp(KeyboardInterrupt):
    """The search has used its time. A kind of interrupt, since those are all that Hypothesis lets through untouched."""


class _New(Exception):
    """An example shows something new. Hypothesis tells failures apart by their classes, so each has one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Met(Generic[E]):
    """Something new, the example that shows it, and the number of that example in the search."""

    thing: Thing
    example: E
    number: int
    violation: Violation | None = None


class Search(Generic[E]):
    """``met`` has all that was found so far. ``examples`` counts those that were run, ``lost`` those without answer."""

    def __init__(
        self,
        subject: Subject[E],
        *,
        known: Iterable[Identity],
        database: Path,
        key: str,
        seed: int,
        most_examples: int,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_example: Callable[[int], None] = lambda number: None,
    ) -> None:
        """``key`` says which examples of the ``database`` are this search's. ``deadline`` is a time of ``clock``."""
        self.met: dict[Thing, Met[E]] = {}
        self.examples = self.drawn = self.lost = 0
        self.last_lost = ""
        self._subject, self._known = subject, frozenset(known)
        self._database = _Database(DirectoryBasedExampleDatabase(database), key)
        self._seed, self._most = seed, most_examples
        self._deadline, self._clock, self._on_example = deadline, clock, on_example
        self._told: OrderedDict[str, Told] = OrderedDict()
        self._new: dict[Thing, Met[E]] = {}
        self._wanted: Thing | None = None
        self._reusing = False

    def run(self, on_met: Callable[[Met[E]], None]) -> None:
        """Search, and call ``on_met`` with each new thing as it is found. Raises TimeIsUp; see `pending` then."""
        self._reusing = True
        self._round([Phase.reuse], number=0, most=self._most)
        for met in self.pending():
            on_met(met)
        self._reusing = False
        phases, number = [Phase.generate, *([Phase.shrink] if self._subject.shrinks else [])], 1
        while self.examples < self._most:
            self._round(phases, number=number, most=self._most - self.examples)
            if not self._new:
                return
            for met in self.pending():
                on_met(met)
            number += 1

    def add(self, thing: Thing, example: E) -> Met[E] | None:
        """Something that was met outside of the search. None where it is known."""
        if thing in self.met or thing in self._known:
            return None
        self.met[thing] = met = Met(thing=thing, example=example, number=self.examples)
        return met

    def check_time(self) -> None:
        """Raises TimeIsUp."""
        if self._deadline is not None and self._clock() >= self._deadline:
            raise TimeIsUp

    def _round(self, phases: Sequence[Phase], *, number: int, most: int) -> None:
        self._wanted = None

        # Settings that a profile or a CI machine would change are all named. They stand before the seed, which takes
        # the database away.
        @settings(
            max_examples=most,
            phases=phases,
            database=self._database,
            derandomize=False,
            deadline=None,
            report_multiple_bugs=self._reusing,
            print_blob=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        @seed(int.from_bytes(hashlib.sha256(f"{self._seed} {number}".encode()).digest()[:8], "big"))
        @given(self._subject.strategy())
        def one(example: E) -> None:
            self._judge(example)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)
            try:
                one()
            except (_New, SkipTest):  # it skips a run without an example, as the first one is where none are kept
                pass
            except AssertionError as error:
                # Hypothesis takes an interrupt that comes before its first example for a bug of its own.
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise error.__context__ from None
                raise
            except ExceptionGroup as several:
                if (rest := several.split(_New)[1]) is not None:
                    raise rest from None
            except HypothesisException as error:
                # One that it could not see twice. The answer of the first time stands.
                if not self._new:
                    raise error from None

    def _judge(self, example: E) -> None:
        """Raises `_New` for an example that shows the new thing of this run, or the first one of it."""
        self.drawn += 1
        told = self._run(example)
        violations: dict[Thing, Violation] = {one.identity: one for one in told.violations}
        things: list[Thing] = [*told.failures, *violations]
        for thing in things:
            if thing in self._known or thing in self.met:
                continue
            if thing not in self._new or thing == self._wanted:
                self._new[thing] = Met(
                    thing=thing, example=example, number=self.examples, violation=violations.get(thing)
                )
            if self._wanted is None and not self._reusing:
                self._wanted = thing
        shown = [one for one in things if (one in self._new if self._reusing else one == self._wanted)]
        if shown:
            key = hashlib.blake2b(repr(shown[0]).encode(), digest_size=8).hexdigest()
            raise _classes.setdefault(key, type(f"New_{key}", (_New,), {}))

    def _run(self, example: E) -> Told:
        key = self._subject.key(example)
        if (told := self._told.get(key)) is not None:
            return told
        self.check_time()
        self.examples += 1
        self._on_example(self.examples)
        told = self._told[key] = self._subject.run(example)
        if told.lost:
            self.lost += 1
            self.last_lost = told.lost
        if len(self._told) > MOST_KEPT:
            self._told.popitem(last=False)
        return told

    def pending(self) -> Iterator[Met[E]]:
        """What was found and not handed on yet: a search that is interrupted may leave some."""
        while self._new:
            thing = next(iter(self._new))
            self.met[thing] = met = self._new.pop(thing)
            yield met


_classes: dict[str, type[_New]] = {}


_CORPORA = (b".secondary", b".pareto")


class _Database(ExampleDatabase):
    """Examples of one search among those of others: Hypothesis' own key is that of our function, always the same."""

    def __init__(self, database: ExampleDatabase, key: str) -> None:
        super().__init__()
        self._database, self._key = database, key.encode()

    def save(self, key: bytes, value: bytes) -> None:
        self._database.save(self._own(key), value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._database.fetch(self._own(key))

    def delete(self, key: bytes, value: bytes) -> None:
        self._database.delete(self._own(key), value)

    def _own(self, key: bytes) -> bytes:
        return self._key + next((corpus for corpus in _CORPORA if key.endswith(corpus)), b"")
