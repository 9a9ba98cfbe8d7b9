"""How a replayed program ended."""

from __future__ import annotations

import asyncio

import pytest

from replay.engine.failure import Failure, FailureKind
from replay.errors import Refused
from replay.runtime.errors import UnrecordedRequest, WaitsForEver
from replay.runtime.loop import Stalled
from replay.runtime.waiting import WaitingTask
from replay.targets.app.outcome import Outcome, failure_of, outcome_of, standing_in, stopper


def failed(error: BaseException, step: int = 0) -> Failure:
    failure = failure_of(outcome_of(error), step=step)
    assert failure is not None
    return failure


def raised(error: BaseException, *, cause: BaseException | None = None, context: BaseException | None = None):
    try:
        try:
            if context is not None:
                raise context
        finally:
            if cause is not None:
                raise error from cause
            raise error
    except BaseException as caught:
        return caught


OURS = UnrecordedRequest("not there")


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (ValueError("no"), "raised"),
        (SystemExit(0), "exited"),
        (SystemExit(1), "exited"),
        (GeneratorExit(), "exited"),
        (KeyboardInterrupt(), "interrupted"),
        (asyncio.CancelledError(), "interrupted"),
        (Stalled([]), "stalled"),
        (WaitsForEver("waits"), "stalled"),
        (OURS, "stopped"),
        (Refused("os.fork()"), "stopped"),
        (raised(ValueError("no"), cause=OURS), "stopped"),
        (raised(ValueError("no"), context=OURS), "stopped"),
        (raised(SystemExit(1), context=OURS), "stopped"),
        (ExceptionGroup("of", [ValueError("no"), ExceptionGroup("in", [raised(OSError(), cause=OURS)])]), "stopped"),
        (ExceptionGroup("of", [ValueError("no")]), "raised"),
    ],
)
def test_ways_to_end(error, ended):
    assert outcome_of(error).ended == ended
    fails = ended in ("raised", "stalled") or (ended == "exited" and str(error) == "1")
    assert (failure_of(outcome_of(error), step=3) is not None) == fails


def test_causes_that_go_in_a_circle_end():
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    assert stopper(one) is None
    other.__context__ = OURS
    assert stopper(one) is OURS


def test_an_exception_in_the_terms_of_a_recording():
    failure = failed(raised(KeyError("city"), context=ValueError("earlier")), step=3)
    assert (failure.kind, failure.exception_type, failure.message) == (FailureKind.EXCEPTION, "KeyError", "'city'")
    assert failure.frame.endswith("test_outcome.py:raised")
    assert failure.step == 3


def test_a_secret_in_a_message_is_removed_as_it_was_when_recorded():
    failure = failed(raised(ValueError("GET http://h/x?api_key=sk-abcdef0123456789abcdef")))
    assert "sk-abcdef" not in failure.message


def test_a_program_that_returned_has_not_failed():
    assert failure_of(Outcome(ended="returned", value=1), step=1) is None


def test_a_stall_stands_where_the_main_task_waits():
    def task(name, frame):
        return WaitingTask(name=name, awaits=(), frame=frame, line=1, on="a Future")

    error = Stalled([task("pump", "a.py:pump"), task("Task-10", "a.py:late"), task("Task-2", "a.py:main")])
    assert standing_in(error) == "a.py:main"
    assert standing_in(Stalled([task("Task-1", ""), task("pump", "a.py:pump")])) == "a.py:pump"
    assert standing_in(Stalled([])) == ""
    assert standing_in(raised(WaitsForEver("x"))).endswith(":raised")
    assert failed(error).kind is FailureKind.STALL
