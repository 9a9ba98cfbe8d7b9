"""Which task of a replay is the one that failed when it was recorded."""

from __future__ import annotations

from dumps.schema import state_pb2 as pb
from replay.runtime.env import Refusal
from replay.runtime.errors import UnrecordedRequest
from replay.runtime.standpoint import Standpoint
from replay.targets.app.failing_task import Suspects, suspects

RETRIES = pb.ToolCall(
    id="tool-1", task="Task-2", status="failed", error_type="asyncio.exceptions.CancelledError", finished_ns=9
)


def found(asked_by: dict[str, str], *, tool: pb.ToolCall = RETRIES, kind: str = "KeyError") -> Suspects | None:
    """Of a program whose Task-2 asked x1, and Task-3 x2 and x3; Task-2 is refused something in the replay."""
    tasks = {"x1": "Task-2", "x2": "Task-3", "x3": "Task-3"}
    state = pb.RuntimeState(
        exchanges=[pb.Exchange(id=one, direction="out", task=task) for one, task in tasks.items()],
        tool_calls=[tool],
        exceptions=[pb.ExceptionInfo(type=kind)],
    )
    standpoint = Standpoint(stacks=(pb.Thread(name="MainThread"), pb.Thread(name="Task-1")), tool_calls=(tool,))
    refusal = Refusal(
        error=UnrecordedRequest("x"), step=3, left_over=0, monotonic_ns=9, task="Task-2", standpoint=standpoint
    )
    return suspects(state, refusal, asked_by)


def test_a_task_that_was_cancelled_within_a_tool_call_did_not_fail() -> None:
    told = found({"x1": "Task-2", "x2": "Task-3", "x3": "Task-3"})
    assert told == Suspects(possible=frozenset({"Task-3"}), cleared=frozenset({"Task-2"}), names=("Task-2", "Task-1"))


def test_tasks_may_be_counted_otherwise() -> None:
    told = found({"x1": "Task-20", "x2": "Task-30", "x3": "Task-30"})
    assert told is not None
    assert (told.possible, told.cleared) == (frozenset({"Task-30"}), frozenset({"Task-20"}))


def test_where_one_asked_for_what_two_had_asked_for_nothing_is_known() -> None:
    assert found({"x1": "Task-2", "x2": "Task-2", "x3": "Task-3"}) is None
    assert found({"x1": "Task-2", "x2": "Task-2", "x3": "Task-2"}) is None


def test_a_call_that_ended_by_itself_clears_nobody() -> None:
    told = found({"x1": "Task-2", "x2": "Task-3", "x3": "Task-3"}, tool=pb.ToolCall(task="Task-2", status="finished"))
    assert told is not None
    assert (told.possible, told.cleared) == (frozenset({"Task-2", "Task-3"}), frozenset())


def test_a_deadline_cancels_the_task_that_fails() -> None:
    assert found({"x1": "Task-2", "x2": "Task-3", "x3": "Task-3"}, kind="builtins.TimeoutError") is None
