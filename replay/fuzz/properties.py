"""Properties of one load on an engine: those of its plays, and those of what is recorded of one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from dumps.redact import redact_dump, write_redacted
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from replay.engine.engine import StepOutcome
from replay.engine.failure import Failure, FailureKind
from replay.engine.live import LiveScheduler
from replay.engine.request import Request
from replay.engine.schedule import StepPlan
from replay.errors import ReplayError
from replay.fuzz.limits import most_steps
from replay.fuzz.recorded import recorded
from replay.fuzz.violation import Violation
from replay.scenario.answers import RecordedAnswers
from replay.scenario.play import Ended, Played, Player, played, run
from replay.scenario.scenario import Scenario, Visit
from replay.scenario.stage import Stage
from replay.signature import Identity, Signature
from replay.verdict import Verdict

Replay = Callable[[Path, str], dict[str, Any]]
"""Replays a dump on a target ("schedule" or "inference") in this process, and gives the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """``failures`` are those of the service, a deadline's left out: when a request is given up is a part of the load.
    ``broken`` is the first invariant that did not hold, with its step."""

    played: Played
    failures: tuple[Failure, ...]
    broken: str

    @property
    def identities(self) -> tuple[Identity, ...]:
        return tuple(dict.fromkeys(Signature.of(failure).identity for failure in self.failures))


def checked_play(scenario: Scenario, player: Player | None, *, seconds: float) -> Checked:
    """Play to the end, with the invariants checked after every step. Raises as `replay.scenario.play.play`."""
    answers = RecordedAnswers(scenario)
    watching: list[_Invariants] = []

    def watch(scheduler: LiveScheduler) -> _Invariants:
        watching.append(_Invariants(scheduler))
        return watching[0]

    stage = Stage(scenario, answers.parts() if player is None else player.parts(scenario), watch)
    ended = run(stage, max_steps=most_steps(scenario), seconds=seconds)
    done = played(stage, ended, guessed_from=answers.guessed_from)
    if ended is Ended.DONE:
        watching[0].at_the_end()
    failures = tuple(one for one in done.failures if one.kind is not FailureKind.TIMEOUT)
    return Checked(played=done, failures=failures, broken=watching[0].broken)


def broken_by(scenario: Scenario, first: Checked, *, player: Player | None, seconds: float) -> Iterator[Violation]:
    """Properties of plays that do not hold. What a quirk breaks is its own doing, and no bug of ours."""
    told = [*_of(first)]
    if told and scenario.quirks:
        plain = checked_play(replace(scenario, quirks=()), player, seconds=seconds)
        told = [*_of(plain)]
    yield from told
    second = checked_play(scenario, player, seconds=seconds)
    if Ended.DEADLINE not in (first.played.ended, second.played.ended) and first != second:
        yield Violation(rule="deterministic", message=f"two plays differ: {_difference(first, second)}")


def broken_by_a_recording(
    scenario: Scenario, like: pb.RuntimeState, wanted: Identity | None, *, player: Player | None, replay: Replay
) -> Iterator[Violation]:
    """Properties of a dump of the play, up to the ``wanted`` failure or to its end: its replay shows it, and so does
    that of a redacted copy."""
    target = "inference" if player is not None else "schedule"
    with tempfile.TemporaryDirectory(prefix="pplx-fuzz-") as folder:
        path = Path(folder) / "played.pplx"
        recorded(scenario, path, like, player, wanted=wanted)
        report = replay(path, target)
        if problem := _unlike(report, wanted):
            yield Violation(rule="replay", message=problem)
            return
        yield from _redacted(path, Path(folder), report, wanted, target, replay)


def _redacted(
    path: Path, folder: Path, report: dict[str, Any], wanted: Identity | None, target: str, replay: Replay
) -> Iterator[Violation]:
    """Token ids are mapped as well, which leaves nothing for a model to compute: that copy is replayed without one."""
    for prompt in (False, True):
        copy = folder / f"redacted-{prompt}.pplx"
        where = "schedule" if prompt else target
        with open_dump(path) as dump:
            redacted = redact_dump(dump, prompt=prompt)
            write_redacted(dump, redacted, copy)
        if not all(claim.kept for claim in redacted.claims if claim.own):
            continue
        before = report if where == target else replay(path, where)
        if _unlike(before, wanted):  # it shows on the model only
            continue
        after = replay(copy, where)
        if (before["verdict"], before["reason_code"]) != (after["verdict"], after["reason_code"]):
            how = "with prompts mapped" if prompt else "with prompts kept"
            yield Violation(
                rule="redaction",
                message=f"{how}, in target {where}: {_verdict(before)} before, {_verdict(after)} after",
            )


def _unlike(report: dict[str, Any], wanted: Identity | None) -> str:
    """How a replay parts from its recording, in words; "" where it does not."""
    if report["divergence"] is not None:
        return f"the replay of a recording parts from it: {_verdict(report)} at {report['divergence']}"
    due = Verdict.REPRODUCED if wanted is not None else Verdict.INCONCLUSIVE
    if report["verdict"] != due:
        named = f"{wanted.kind} ({wanted.invariant or wanted.exception_type})" if wanted is not None else "no failure"
        return f"the replay of a recording with {named} is {_verdict(report)}"
    return ""


def _verdict(report: dict[str, Any]) -> str:
    return f"{report['verdict']} ({report['reason_code']})" if report["reason_code"] else str(report["verdict"])


def _of(one: Checked) -> Iterator[Violation]:
    if one.broken:
        yield Violation(rule="invariants", message=one.broken)
    left = [answer.id for answer in one.played.answers if answer.cause is None]
    if one.played.ended is Ended.MAX_STEPS or (one.played.ended is Ended.DONE and left):
        yield Violation(
            rule="every-request-ends", message=f"{len(left)} requests have not ended after {one.played.steps} steps"
        )


def _difference(first: Checked, second: Checked) -> str:
    for name in ("ended", "steps", "failures", "answers", "peak_used_blocks"):
        ours, theirs = getattr(first.played, name), getattr(second.played, name)
        if ours != theirs:
            return f"{name} is {str(ours)[:200]}, then {str(theirs)[:200]}"
    return f"invariants: {first.broken!r}, then {second.broken!r}"


class _Invariants:
    """Stands where a recorder does, and looks at the scheduler after each step. Keeps the first problem."""

    def __init__(self, scheduler: LiveScheduler) -> None:
        self.broken = ""
        self._scheduler = scheduler

    def planned(self, plan: StepPlan) -> None: ...

    def stepped(self, outcome: StepOutcome) -> None:
        self._look(f"after step {outcome.plan.index}")

    def came(self, visit: Visit, request: Request) -> None: ...

    def failed(self, failure: Failure) -> None: ...

    def at_the_end(self) -> None:
        self._look("at the end")
        used = self._scheduler.pool.num_used
        if used and not self.broken:
            self.broken = f"at the end: {used} blocks are still in use, and nobody runs"

    def _look(self, when: str) -> None:
        if self.broken:
            return
        try:
            self._scheduler.check_integrity()
        except AssertionError as error:
            self.broken = f"{when}: {error}"


CANNOT = (DumpError, ReplayError)
"""What an example may raise that cannot be played."""
