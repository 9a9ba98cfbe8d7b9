"""Replays many dumps at once: one model for all that want the same, steps of different dumps in one call.

Each dump goes through `run_job` as it would alone, in a turn of `lockstep`; only where it would run the model, the
batch does. Reports come out one by one, as events, so that what is done stays done whatever happens later.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replay.errors import UsageError
from replay.targets import lockstep
from replay.targets.drive import Emit
from replay.targets.host import Host
from replay.targets.job import options_of, run_job

if TYPE_CHECKING:
    from replay.targets.batch_model import BatchModel

AT_ONCE = 16
MAX_AT_ONCE = 256
OPEN_PER_RUNNING = 2  # dumps that may be open for each that runs: some wait for another model
PROGRESS_S = 0.1

ErrorEvent = Callable[[BaseException], Mapping[str, Any]]


def run_batch(job: Mapping[str, Any], emit: Emit, *, error_event: ErrorEvent) -> dict[str, Any]:
    """Replay the dumps ``job["dumps"]`` (paths), ``job["at_once"]`` at a time; all other keys are those of `run_job`.

    Emits for each dump, with its ``index`` in that list, an item event with ``state`` "begun", and one with "report"
    and the report of `run_job`, or with "error" and the keys that ``error_event`` makes. Raises `UsageError` for
    options that suit no dump.
    """
    dumps, at_once, options = _checked(job)
    progress = _Progress(len(dumps), emit)
    batch_model: list[BatchModel] = []

    def model() -> BatchModel:
        # Torch is imported when the first dump asks for a model, and never for the schedule alone.
        if not batch_model:
            from replay.targets.batch_model import BatchModel

            batch_model.append(BatchModel(at_once=at_once))
        return batch_model[0]

    def task(index: int) -> Callable[[lockstep.Seat], dict[str, Any]]:
        def replay(seat: lockstep.Seat) -> dict[str, Any]:
            host = Host(clock=seat.clock, load=lambda *args, **kwargs: model().load(seat, *args, **kwargs))
            return run_job({**options, "dump": dumps[index]}, progress.of(index), host)

        return replay

    def serve(seats: Sequence[lockstep.Seat]) -> None:
        model().serve(seats)
        progress.show()

    def begun(index: int) -> None:
        emit({"event": "item", "index": index, "state": "begun"})

    def ended(index: int, outcome: lockstep.Outcome) -> None:
        progress.done(index)
        if batch_model and progress.ended % at_once == 0:
            gc.collect()  # a replay's objects know each other, and its KV cache is large; this takes half a second
        if outcome.error is None:
            try:
                emit({"event": "item", "index": index, "state": "report", "report": outcome.value})
                return
            except Exception as error:  # a report too large for a frame
                outcome = lockstep.Outcome(error=error)
        assert outcome.error is not None
        emit({**error_event(outcome.error), "event": "item", "index": index, "state": "error"})

    lockstep.run(
        [task(index) for index in range(len(dumps))],
        serve,
        at_once=at_once * OPEN_PER_RUNNING,
        on_begin=begun,
        on_end=ended,
    )
    return {"dumps": len(dumps)}


def _checked(job: Mapping[str, Any]) -> tuple[list[str], int, dict[str, Any]]:
    options = {key: value for key, value in job.items() if key not in ("dumps", "at_once")}
    dumps, at_once = job.get("dumps"), job.get("at_once", AT_ONCE)
    if not isinstance(dumps, list) or not all(isinstance(path, str) for path in dumps):
        raise UsageError(f"dumps: wants a list of paths, got {dumps!r:.80}")
    if type(at_once) is not int or not 1 <= at_once <= MAX_AT_ONCE:
        raise UsageError(f"at_once: wants an integer from 1 to {MAX_AT_ONCE}, got {at_once!r}")
    options_of(options)
    return dumps, at_once, options


class _Progress:
    """Adds up what the replays say of theirs: tokens of fast-forwards and steps, of all dumps begun so far."""

    def __init__(self, dumps: int, emit: Emit) -> None:
        self._emit = emit
        self._dumps = dumps
        self._work: dict[tuple[int, str], tuple[int, int]] = {}
        self._said: set[str] = set()
        self._shown = 0.0
        self.ended = 0

    def of(self, index: int) -> Emit:
        """Where the replay of one dump sends its events."""

        def take(event: dict[str, Any]) -> None:
            if event["event"] != "progress":
                self._emit(event)
            elif event["stage"] in ("fast-forward", "step"):
                done, total = event["done"], event["total"]
                self._work[index, event["stage"]] = (done, done if total is None else total)
            elif event["stage"] not in self._said:  # each of them opens and loads; that is said once
                self._said.add(event["stage"])
                self._emit(event)

        return take

    def done(self, index: int) -> None:
        """Replays stop where they have seen enough, so what is left of one counts as done."""
        self.ended += 1
        for key, (_, total) in self._work.items():
            if key[0] == index:
                self._work[key] = (total, total)

    def show(self) -> None:
        now = time.monotonic()
        if self._work and now >= self._shown + PROGRESS_S:
            self._shown = now
            done, total = (sum(counts[i] for counts in self._work.values()) for i in (0, 1))
            self._emit({"event": "progress", "stage": "batch", "done": done, "total": total})
