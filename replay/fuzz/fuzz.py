"""From dumps to what fails near them: opens them, searches, and shrinks and keeps what is found."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dumps.schema import state_pb2 as pb
from replay.errors import ReplayError
from replay.fuzz import starts
from replay.fuzz.app_subject import AppSubject
from replay.fuzz.engine_job import ENGINE_FUNCTION
from replay.fuzz.engine_subject import EngineSubject
from replay.fuzz.found import Broken, Folder, Found
from replay.fuzz.load_subject import LoadSubject, Original
from replay.fuzz.options import Options
from replay.fuzz.outcome import Outcome
from replay.fuzz.search import Met, Search, TimeIsUp
from replay.fuzz.shrink import Others, Shrinker, keep_smaller
from replay.fuzz.subject import Subject
from replay.fuzz.violation import Violation
from replay.signature import Identity
from replay.targets.app.options import is_app

OnStage = Callable[[str, int, int | None], None]
"""What is done now, how much of it is done, and of how much."""

LEAST_SHRINK_S = 1.0


def fuzz(
    options: Options,
    *,
    on_stage: OnStage = lambda what, done, total: None,
    on_found: Callable[[Found | Broken], None] = lambda found: None,
    clock: Callable[[], float] = time.monotonic,
    engine_function: str = ENGINE_FUNCTION,
) -> Outcome:
    """Search the neighbourhood of the dumps for failures that none of them shows, and for properties of ours that do
    not hold.

    Ctrl-C and the end of ``time_s`` end the search: `Outcome.complete` is False then. What was found until then is in
    the folder, each failure with a dump that a replay has shown to reproduce.

    Raises `UsageError`, `DumpError` and what else there is no search without.
    """
    options.check()
    Folder(options.out).check()
    states = starts.read(options.dumps)
    run = _Run(options, states, on_stage, on_found, clock)
    with contextlib.closing(_subject(options, states, engine_function)) as subject:
        return run.search(subject)


def _subject(options: Options, states: dict[Path, pb.RuntimeState], engine_function: str) -> Subject[Any]:
    if is_app(options.target):
        return AppSubject(
            states,
            target=options.target,
            app_path=options.app_path,
            answers=options.answers,
            model=options.model,
            seconds=options.example_s,
            load_s=options.load_s,
        )
    if options.target == "load":
        originals = [Original(path, path.read_bytes(), state) for path, state in states.items()]
        return LoadSubject(originals, seconds=options.example_s, load_s=options.load_s)
    found = starts.engine_starts(states)
    return EngineSubject(
        found,
        options.quirks,
        target=options.target,
        seconds=options.example_s,
        load_s=options.load_s,
        models=starts.models(found, options.model) if options.target == "inference" else None,
        device=options.device,
        job_function=engine_function,
    )


class _Run:
    def __init__(
        self,
        options: Options,
        states: dict[Path, pb.RuntimeState],
        on_stage: OnStage,
        on_found: Callable[[Found | Broken], None],
        clock: Callable[[], float],
    ) -> None:
        self._options, self._on_stage, self._on_found, self._clock = options, on_stage, on_found, clock
        self._began = clock()
        self._deadline = None if options.time_s is None else self._began + options.time_s
        self._folder = Folder(options.out)
        self._states = states
        given = {path.absolute(): path for path in options.dumps}
        self._outcome = Outcome(
            dumps=options.dumps,
            out=options.out,
            target=options.target,
            quirks=tuple(str(quirk) for quirk in options.quirks),
            seed=options.seed,
            known={identity: given[path] for identity, path in starts.known(states).items()},
        )

    def search(self, subject: Subject[Any]) -> Outcome:
        options, outcome = self._options, self._outcome
        self._subject = subject
        self._search = Search(
            subject,
            known=outcome.known,
            database=options.database,
            key=self._key(),
            seed=options.seed,
            most_examples=options.examples,
            deadline=self._deadline,
            clock=self._clock,
            on_example=self._example,
        )
        self._shrinker = Shrinker(
            subject.job(),
            self._folder,
            seconds=options.example_s,
            load_s=options.load_s,
            on_stage=lambda what, left, trials: self._on_stage(
                f"shrinking, {what}{left and f': {left}'}", trials, None
            ),
        )
        self._stopped = False
        with contextlib.closing(self._shrinker):
            try:
                self._search.run(self._met)
                outcome.complete = True
            except KeyboardInterrupt as end:
                outcome.interrupted = self._stopped = not isinstance(end, TimeIsUp)
                if not self._stopped:
                    outcome.notes.append("the time is used up")
                for met in self._search.pending():
                    self._met(met)
        outcome.examples, outcome.lost = self._search.examples, self._search.lost
        outcome.drawn = self._search.drawn
        outcome.last_lost = self._search.last_lost
        outcome.seconds = self._clock() - self._began
        return outcome

    def _key(self) -> str:
        """Which examples of a database belong to this search: those of the same dumps, target and quirks."""
        parts = [self._options.target, *self._outcome.quirks]
        parts += [state.manifest.id or str(path) for path, state in self._states.items()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def _example(self, number: int) -> None:
        found, broken = len(self._outcome.found), len(self._outcome.broken)
        words = f"searching in target {self._options.target}: {found} found"
        self._on_stage(words + (f", {broken} broken" if broken else ""), number, self._options.examples)

    # What is met

    def _met(self, met: Met[Any]) -> None:
        """Put it into the folder, and shrink it while there is time."""
        if met.violation is not None:
            self._broke(met.violation, met)
        elif isinstance(met.thing, Identity):
            self._failed(met.thing, met)

    def _broke(self, violation: Violation, met: Met[Any]) -> None:
        suffix, data = self._subject.evidence(met.example)
        broken = Broken(
            violation=violation,
            evidence=self._folder.keep(violation, suffix, data),
            start=self._subject.start(met.example),
            change=self._subject.change(met.example),
            number=met.number,
        )
        self._outcome.broken.append(broken)
        self._on_found(broken)

    def _failed(self, identity: Identity, met: Met[Any]) -> None:
        with self._folder.alone(self._no_time_to_wait) as alone:
            others, interrupted = self._keep(identity, met, alone=alone)
        self._meet_others(others, met)
        if interrupted:
            raise KeyboardInterrupt

    def _no_time_to_wait(self) -> bool:
        self._on_stage("waiting for another search in the folder", 0, None)
        return self._stopped or self._time_left() < LEAST_SHRINK_S

    def _keep(self, identity: Identity, met: Met[Any], *, alone: bool) -> tuple[Others, bool]:
        """Returns what else was met on the way, and whether somebody interrupted it."""
        found = Found(
            identity=identity,
            path=self._folder.of(identity),
            start=self._subject.start(met.example),
            change=self._subject.change(met.example),
            number=met.number,
            target=self._options.target,
        )
        before = self._folder.before(identity)
        if before is not None and before["shrunk"]:
            found.before, found.shrunk = True, True
            found.left, found.needs = str(before["left"]), list(before["needs"])
            self._tell(found)
            return {}, False
        found.before = before is not None
        try:
            data = self._subject.dump(met.example, identity)
        except ReplayError as error:
            self._broke(Violation(rule="replay", message=str(error)), met)
            return {}, False
        self._folder.put(found.met, data)
        model = self._subject.model(met.example)
        self._on_stage("replaying what was found", 0, None)
        if (violation := self._shrinker.check(found, model, self._subject.settings(met.example))) is not None:
            self._broke(violation, met)
            return {}, False
        self._folder.describe(found, seed=self._options.seed)
        others: Others = {}
        interrupted = False
        try:
            others, interrupted = self._shrink(found, met, model, alone=alone)
        except KeyboardInterrupt:
            found.note, interrupted = "not shrunk: interrupted", True
        self._stopped = self._stopped or interrupted
        self._tell(found)
        return others, interrupted

    def _shrink(self, found: Found, met: Met[Any], model: Path | None, *, alone: bool) -> tuple[Others, bool]:
        """Returns what else was met on the way, and whether somebody interrupted it."""
        left = self._time_left()
        if not found.settings and (self._stopped or not alone or left < LEAST_SHRINK_S):
            found.note = "not shrunk: the same command goes on with it"
            return {}, False
        violation, others, interrupted = self._shrinker.shrink(found, model, time_s=left)
        keep_smaller(self._folder, found, seed=self._options.seed)
        if violation is not None:
            self._broke(violation, met)
        return others, interrupted

    def _meet_others(self, others: Others, met: Met[Any]) -> None:
        if not isinstance(self._subject, EngineSubject):
            return
        for identity, document in others.items():
            example = self._subject.other(met.example, document)
            if (other := self._search.add(identity, example)) is not None:
                self._met(other)

    def _tell(self, found: Found) -> None:
        self._outcome.found.append(found)
        self._on_found(found)

    def _time_left(self) -> float:
        """For shrinking one failure."""
        if self._deadline is None:
            return self._options.shrink_s
        return min(self._options.shrink_s, self._deadline - self._clock())
