"""Trials: a scenario played in a worker of its own kind, with a time limit, and never twice.

A worker that dies or hangs ends its trial, and the trial says no. That answer is not kept for another process: it may
have been the machine's doing.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from replay.errors import ReplayError
from replay.isolate.limits import LOAD_TIMEOUT_S, Limits
from replay.isolate.result import Result
from replay.isolate.warm import WarmWorkers
from replay.minimise.trial import TRIAL_FUNCTION
from replay.minimise.work import Work
from replay.scenario.play import Ended
from replay.scenario.scenario import Scenario
from replay.signature import Identity

Target = Literal["schedule", "inference"]

GRACE_S = 2.0
"""What a worker gets beyond the time of a play, which looks at its clock between two steps."""

REFUSED = "refused"
"""How a play ended that could not begin."""

MAX_JOBS = 100_000
IDLE_S = 3600.0


class TimeIsUp(Exception):
    """The search has used its time. What it found stands."""


class TrialFailed(ReplayError):
    """What was played before could not be recorded. Usually a worker that was ended from outside."""

    remedy = "run the same command again: it goes on with what it found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all trials of a search have in common. ``model`` is a folder of weights, None without target inference."""

    dump: Path
    wanted: Identity
    model: Path | None = None
    device: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a play showed: whether the wanted failure, after how many steps, and which others before it.

    ``problem`` says why there is nothing else: the worker died or hung, or the scenario cannot be played.
    """

    shows: bool
    seen: frozenset[Identity] = frozenset()
    steps: int = 0
    peak: int = 0
    ended: str = ""
    problem: str = ""


@dataclass(slots=True)
class Counts:
    """How many trials were played, known already, and ended without an answer."""

    played: int = 0
    known: int = 0
    lost: int = 0


class Trials:
    """Plays scenarios until ``deadline`` of ``clock``. Use it as a context manager: it has worker processes."""

    def __init__(
        self,
        bench: Bench,
        work: Work,
        *,
        trial_s: float,
        deadline: float | None = None,
        load_s: float = LOAD_TIMEOUT_S,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
        job_function: str = TRIAL_FUNCTION,
    ) -> None:
        self.bench = bench
        self.counts = Counts()
        self._work = work
        self._trial_s = trial_s
        self._deadline = deadline
        self._clock = clock
        self._limits = Limits(timeout_s=trial_s + grace_s, load_timeout_s=load_s)
        self._job_function = job_function
        self._lost: dict[str, Trial] = {}
        # With a factory the runner does not make its loop the thread's own.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._pools: dict[str, WarmWorkers] = {}

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        async def close() -> None:
            for pool in self._pools.values():
                await pool.close()

        with self._runner:
            self._runner.run(close())

    def check_time(self) -> None:
        """Raises TimeIsUp."""
        if self._deadline is not None and self._clock() >= self._deadline:
            raise TimeIsUp

    def play(self, scenario: Scenario, target: Target, max_steps: int) -> Trial:
        """Raises TimeIsUp."""
        self.check_time()
        key = f"{target} {scenario.digest}"
        known = self._known(key, max_steps)
        if known is not None:
            self.counts.known += 1
            return known
        self.counts.played += 1
        result = self._run(target, self._job(scenario, target, max_steps))
        trial = _trial(result)
        if (trial.problem and trial.ended != REFUSED) or trial.ended == Ended.DEADLINE:
            self.counts.lost += 1
            self._lost[f"{key} {max_steps}"] = trial
        else:
            self._work.tried(key, {**(result.report or {}), "environment": None, "cap": max_steps})
        return trial

    def _known(self, key: str, cap: int) -> Trial | None:
        if (lost := self._lost.get(f"{key} {cap}")) is not None:
            return lost
        told = self._work.trials.get(key)
        if told is None:
            return None
        trial = _told(told)
        if trial.shows and trial.steps > cap:
            return Trial(shows=False, seen=trial.seen, steps=cap, ended=Ended.MAX_STEPS)
        whole = trial.steps <= cap and (trial.ended != Ended.MAX_STEPS or told["cap"] == cap)
        return trial if whole else None

    def record(self, scenario: Scenario, target: Target, max_steps: int) -> bytes:
        """The dump of the scenario's play. Raises TrialFailed."""
        result = self._run(target, {**self._job(scenario, target, max_steps), "record": True})
        told = (result.report or {}).get("dump")
        if not isinstance(told, str):
            raise TrialFailed(f"the run could not be recorded: {_trial(result).problem or 'the worker said nothing'}")
        return base64.b64decode(told)

    def _job(self, scenario: Scenario, target: Target, max_steps: int) -> dict[str, Any]:
        return {
            "dump": str(self.bench.dump),
            "target": target,
            "model": str(self.bench.model) if self.bench.model is not None and target == "inference" else None,
            "device": self.bench.device,
            "wanted": asdict(self.bench.wanted),
            "scenario": scenario.to_json(),
            "max_steps": max_steps,
            "seconds": self._trial_s,
        }

    def _run(self, target: Target, job: dict[str, Any]) -> Result:
        return self._runner.run(self._pool(target).run(job, limits=self._limits))

    def _pool(self, target: Target) -> WarmWorkers:
        if target not in self._pools:
            self._pools[target] = WarmWorkers(
                at_most=1, idle_s=IDLE_S, max_jobs=MAX_JOBS, job_function=self._job_function
            )
        return self._pools[target]


def _trial(result: Result) -> Trial:
    if result.error is not None:
        return Trial(shows=False, problem=f"{result.error.kind}: {result.error.message}")
    return _told(result.report or {})


def _told(told: dict[str, Any]) -> Trial:
    """A worker's word, which is not trusted: what has another form than ours says no."""
    try:
        if "refused" in told:
            return Trial(shows=False, ended=REFUSED, problem=str(told["refused"]))
        return Trial(
            shows=told["shows"] is True,
            seen=frozenset(Identity(**identity) for identity in told["seen"]),
            steps=int(told["steps"]),
            peak=int(told["peak"]),
            ended=str(told["ended"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        return Trial(shows=False, problem=f"the worker told something else than a trial: {error!r:.200}")
