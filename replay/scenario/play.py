"""Plays a scenario on our own live scheduler and block pool: one thread, no sockets, the same each time.

Time is counted in steps. While nothing runs or waits there are none, so what comes next comes at once, and all that
comes later keeps its distance to it. A deadline of a visit is a step, too.

Without a player, answers are those of the record (`replay.scenario.answers`): that needs neither weights nor torch, and
shows nothing that only a model's numbers show.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from replay.scenario.answers import RecordedAnswers
from replay.scenario.played import Answered, Ended, Parts, Played, Player
from replay.scenario.scenario import Scenario
from replay.scenario.stage import Stage
from replay.signature import Identity, Signature

__all__ = ["MAX_STEPS", "Answered", "Ended", "Parts", "Played", "Player", "play"]

MAX_STEPS = 1_000_000


def play(
    scenario: Scenario,
    player: Player | None = None,
    *,
    wanted: Identity | None = None,
    max_steps: int = MAX_STEPS,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Played:
    """Play once, on recorded answers or on a ``player``'s model.

    The play ends with the first step that shows the ``wanted`` failure; without one, when all visits have ended. An
    exception ends it in any case, as it ends an engine's life. It may take ``seconds`` of ``clock``; only a play that
    these ended (`Ended.DEADLINE`) comes out otherwise the next time.

    Raises:
        UsageError: a model cannot compute it: token ids are not known, or a quirk does not fit.
    """
    answers = RecordedAnswers(scenario)
    stage = Stage(scenario, answers.parts() if player is None else player.parts(scenario))
    ended = run(stage, wanted=wanted, max_steps=max_steps, seconds=seconds, clock=clock)
    return played(stage, ended, guessed_from=answers.guessed_from)


def run(
    stage: Stage,
    *,
    wanted: Identity | None = None,
    max_steps: int = MAX_STEPS,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """`Stage.run` within a number of seconds."""
    end = None if seconds is None else clock() + seconds
    return stage.run(wanted=wanted, max_steps=max_steps, late=lambda: end is not None and clock() >= end)


def played(stage: Stage, ended: Ended, *, guessed_from: int | None) -> Played:
    """What a stage has shown so far."""
    last = stage.wanted or (stage.failures[-1] if stage.failures else None)
    return Played(
        failures=tuple(stage.failures),
        signature=Signature.of(last) if last is not None else None,
        ended=ended,
        steps=stage.steps,
        peak_used_blocks=stage.peak_used_blocks,
        guessed_from=guessed_from,
        answers=stage.answers,
    )
