"""How a replayed program ended, and the failure that this is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from dumps.record.secrets import scrub_text
from dumps.record.stacks import capture_exception, top_in_app_frame
from replay.engine.failure import Failure, FailureKind
from replay.errors import Refused
from replay.runtime.errors import RuntimeReplayError, WaitsForEver
from replay.runtime.loop import Stalled

Ended = Literal["returned", "exited", "interrupted", "raised", "stalled", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``value`` is what the program returned, ``error`` what left it.

    ``ended`` is "stalled" where it waits for what never comes, "stopped" where what left it is the mocked runtime's or
    the guard's error, or came from one: that is no failure of the program's. Neither is being told to end
    ("interrupted"), nor leaving by `sys.exit` ("exited") with the status 0.

    ``failure`` is what a request of a server failed with, where the recorder's own wrapper saw it: also a client that
    is gone, and a request that was cancelled.
    """

    ended: Ended
    value: Any = None
    error: BaseException | None = None
    failure: Failure | None = None


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of a program that ``error`` left."""
    return Outcome(ended=_ended(error), error=error)


def _ended(error: BaseException) -> Ended:
    if isinstance(error, Stalled | WaitsForEver):
        return "stalled"
    if stopper(error) is not None:
        return "stopped"
    if isinstance(error, SystemExit | GeneratorExit):
        return "exited"
    return "interrupted" if isinstance(error, KeyboardInterrupt | asyncio.CancelledError) else "raised"


def stopper(error: BaseException | None) -> RuntimeReplayError | Refused | None:
    """The error of ours that ``error`` is, or came from: by its causes, what it was raised in, or out of a group."""
    return next((one for one in family(error) if isinstance(one, RuntimeReplayError | Refused)), None)


def family(error: BaseException | None) -> Iterator[BaseException]:
    """``error``, and what it came from: its causes, what it was raised in, the members of a group."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__context__, one.__cause__]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions


def failure_of(outcome: Outcome, *, step: int) -> Failure | None:
    """The failure that a program's end is, in the terms that a recording uses. None where it is none.

    ``step`` is the world step: how many outbound requests and tool calls the program had begun. Leaving by `sys.exit`
    is one where the status is not 0: whoever runs the program sees it fail.
    """
    if outcome.failure is not None:
        return replace(outcome.failure, step=step)
    error = outcome.error
    if error is None or not (outcome.ended in ("raised", "stalled") or _status(error)):
        return None
    if outcome.ended == "stalled":
        return Failure(
            kind=FailureKind.STALL, invariant="no-progress", message=str(error), step=step, frame=standing_in(error)
        )
    raised = capture_exception(error)[-1]
    return Failure(
        kind=FailureKind.EXCEPTION,
        exception_type=raised.type,
        message=scrub_text(raised.message),
        step=step,
        frame=top_in_app_frame(raised) or "",
    )


def _status(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code not in (None, 0) and stopper(error) is None


def standing_in(error: BaseException) -> str:
    """The program's own frame that waits in a stall, as a recording names it: of the main task, else of the thread."""
    if isinstance(error, Stalled):
        return next((task.frame for task in sorted(error.tasks, key=_age) if task.frame), "")
    return top_in_app_frame(capture_exception(error)[-1]) or ""


def _age(task: Any) -> tuple[bool, int]:
    """asyncio counts the tasks that have no name of their own; the main one comes first."""
    number = task.name.removeprefix("Task-")
    return not number.isdigit(), int(number) if number.isdigit() else 0
