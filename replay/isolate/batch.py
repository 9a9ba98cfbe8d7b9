"""Many dumps in one worker, and what becomes of them when it dies.

A worker that ends before its time takes down every dump that it had open. Which of them did it is not known, so those
are replayed again one by one, each in a worker of its own; reports that were out already stand, and dumps that were
not begun go on together in a new worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from replay.isolate.items import BEGUN
from replay.isolate.limits import DEFAULT_LIMITS, Limits
from replay.isolate.result import Result
from replay.isolate.supervisor import JOB_FUNCTION, OnEvent, run

BATCH_FUNCTION = "replay.isolate.batch_job:run"

GRACE_S = 5.0  # what a worker gets beyond its own deadline before it is killed

AGAIN = frozenset({"InternalError", "LimitExceeded", "ProtocolError"})
"""Errors that may come from sharing a process: from memory above all. The dump is replayed again alone."""

OnResult = Callable[[int, Result, str], None]


def run_batch(
    dumps: Sequence[str],
    options: Mapping[str, Any],
    *,
    on_result: OnResult,
    on_event: OnEvent | None = None,
    at_once: int,
    limits: Limits = DEFAULT_LIMITS,
    grace_s: float = GRACE_S,
    batch_function: str = BATCH_FUNCTION,
    job_function: str = JOB_FUNCTION,
) -> None:
    """Replay ``dumps`` (paths) with the ``options`` of `run_job` and the time of ``limits`` for each of them.

    ``on_result`` gets each dump's place in the list, its result, and why it was replayed alone or "". Results come as
    they are ready. ``on_event`` gets the events of all workers, and before dumps are replayed one by one an event
    "alone" with their number as ``dumps``, and ``why``.

    A worker that goes ``grace_s`` over the budget is killed: for a batch that is when no dump has ended in the time
    that all that run at once may take, loading included. Ctrl-C ends the worker and raises KeyboardInterrupt.
    """
    left, timeout_s = list(range(len(dumps))), limits.timeout_s
    while left:
        batch = _Batch(left, on_result, on_event)
        grown = None if timeout_s is None else timeout_s * min(at_once, len(left)) + limits.load_timeout_s + grace_s
        ended = run(
            {**options, "timeout_s": timeout_s, "dumps": [dumps[index] for index in left], "at_once": at_once},
            on_event=batch.take,
            limits=replace(limits, timeout_s=grown),
            job_function=batch_function,
            items=len(left),
        )
        why = ended.error.message if ended.error else "the batch ended without its report"
        left = [index for index in left if index not in batch.done]
        # Without a sign of which dump is to blame, none may be tried together with others again.
        alone = [index for index in left if index in batch.begun or not batch.begun]
        if alone and on_event is not None:
            on_event({"event": "alone", "dumps": len(alone), "why": batch.doubts.get(alone[0], why)})
        for index in alone:
            result = run(
                {**options, "timeout_s": timeout_s, "dump": dumps[index]},
                on_event=on_event,
                limits=replace(limits, timeout_s=None if timeout_s is None else timeout_s + grace_s),
                job_function=job_function,
            )
            on_result(index, result, batch.doubts.get(index, why))
        left = [index for index in left if index not in alone]


class _Batch:
    """What one worker has said so far of the dumps ``indices``."""

    def __init__(self, indices: Sequence[int], on_result: OnResult, on_event: OnEvent | None) -> None:
        self.begun: set[int] = set()
        self.done: set[int] = set()
        self.doubts: dict[int, str] = {}
        self._indices = tuple(indices)
        self._on_result = on_result
        self._on_event = on_event

    def take(self, event: dict[str, Any]) -> None:
        if event["event"] != "item":
            if self._on_event is not None:
                self._on_event(event)
            return
        index = self._indices[event["index"]]
        if event["state"] == BEGUN:
            self.begun.add(index)
            return
        result: Result = event["result"]
        if index in self.done:
            return
        if result.error is not None and result.error.kind in AGAIN and len(self._indices) > 1:
            self.doubts[index] = f"in the batch it ended with {result.error.kind}: {result.error.message}"
            return
        self.done.add(index)
        self._on_result(index, result, "")
