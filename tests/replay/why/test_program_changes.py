"""What can be changed of a program's world."""

from __future__ import annotations

from dumps.schema import state_pb2 as pb
from replay.why.program_changes import changes_of_program


def program(*calls: tuple[str, str, str, str]) -> pb.RuntimeState:
    state = pb.RuntimeState()
    for call_id, name, status, result in calls:
        state.tool_calls.add(id=call_id, name=name, status=status, result_json=result)
    return state


def test_calls_that_came_to_nothing_are_answered():
    state = program(
        ("a", "look", "finished", "7"),
        ("b", "look", "pending", ""),
        ("c", "ask", "failed", ""),
        ("d", "ask", "partial", ""),
    )
    changes, left = changes_of_program(state, {})
    assert [change.settings for change in changes] == [
        {"tool.b.result": "7"},  # as another call of that tool was
        {"tool.c.result": "null"},
        {"tool.d.result": "null"},
    ]
    assert changes[1].needs == "the tool call c (ask) failing"
    assert [one.what for one in left] == ["tool.a.result=JSON"]


def test_a_result_that_is_not_whole_is_given_to_nobody():
    state = program(("a", "look", "finished", '{"cut'), ("b", "look", "pending", ""))
    changes, _ = changes_of_program(state, {})
    assert changes[0].settings == {"tool.b.result": "null"}


def test_a_given_result_is_the_one_to_try_also_for_a_call_that_was_answered():
    state = program(("a", "look", "finished", "7"), ("b", "look", "pending", ""))
    changes, left = changes_of_program(state, {"a": "8", "b": '"later"'})
    assert [change.settings for change in changes] == [{"tool.a.result": "8"}, {"tool.b.result": '"later"'}]
    assert left == []


def test_a_pending_request_is_told_as_one_that_cannot_be_answered():
    state = program()
    state.exchanges.add(id="e", direction="out", method="GET", url="http://a/b")
    state.exchanges.add(id="f", direction="out", method="GET", url="http://a/c", ended_ns=1)
    state.exchanges.add(id="g", direction="in", method="GET", url="http://a/d")
    changes, left = changes_of_program(state, {})
    assert changes == []
    assert [(one.what, one.applies) for one in left if one.applies] == [("an answer to GET http://a/b", True)]
