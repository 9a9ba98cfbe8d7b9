"""Failures of a replayed program that reach no caller: what ends a thread, or a task that nobody awaits.

A recording makes a dump of each; a replay has to see them in the same way.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dumps.record.triggers import on_lost_task, on_thread_exception
from dumps.text import printable
from replay.engine.failure import Failure
from replay.targets.app.outcome import failure_of, outcome_of

MAX_LOST = 100


@dataclass(frozen=True, slots=True)
class Lost:
    """One of them. ``error`` is what was raised, ``failure`` what a recording would say of it."""

    error: BaseException
    failure: Failure

    @property
    def sentence(self) -> str:
        where = f" in {self.failure.frame}" if self.failure.frame else ""
        return f"{self.failure.exception_type}{where}: {printable(self.failure.message, 200)!r}"


@contextlib.contextmanager
def lost_failures(step: Callable[[], int | None]) -> Iterator[list[Lost]]:
    """The failures that end in nobody's hands while the block runs, in order.

    ``step`` gives the world step, or None once the program is not itself any more: what fails then is our doing.
    """
    found: list[Lost] = []

    def failed(error: BaseException) -> None:
        now = step()
        if now is None or len(found) == MAX_LOST:
            return
        failure = failure_of(outcome_of(error), step=now)
        if failure is not None:
            found.append(Lost(error, failure))

    with contextlib.ExitStack() as stack:
        stack.callback(on_thread_exception(failed))
        stack.callback(on_lost_task(failed))
        yield found
        gc.collect()  # a task in a circle is lost only when it is collected
