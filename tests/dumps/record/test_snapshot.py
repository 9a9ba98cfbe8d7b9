"""The context snapshot: what it holds, for any valid dump of a program, and that it is nobody else's to read."""

from __future__ import annotations

import json
import stat

from hypothesis import given

from dumps.record.snapshot import snapshot_of, write_snapshot
from dumps.schema import state_pb2 as pb
from dumps.strategies.programs import programs


def in_the_middle() -> pb.RuntimeState:
    state = pb.RuntimeState()
    state.manifest.id, state.manifest.reason = "0123456789abcdef", "signal"
    state.manifest.created_ns, state.manifest.wall_minus_monotonic_ns = (
        1_700_000_005_000_000_000,
        1_700_000_000_000_000_000,
    )
    messages = '[{"id": "m1", "role": "user", "content": "where?"}]'
    state.context_stack.add(
        stack_depth=1, kind="agent", last_message_id="m1", payload_json=f'{{"messages": {messages}}}'
    )
    state.context_stack.add(stack_depth=2, kind="tool", payload_json='{"payload": {"name": "search"}, "messages": []}')
    state.context_stack.add(stack_depth=3, kind="cut", payload_json='{"payload": {"te')
    state.tool_calls.add(id="t1", name="rates", status="failed", error_type="OSError", started_ns=1, finished_ns=2)
    second = 1_000_000_000
    state.tool_calls.add(id="t2", name="search", status="pending", started_ns=2 * second, deadline_ns=32 * second)
    state.tool_calls.add(id="t3", name="map", status="partial", arguments_json='{"ci', started_ns=4 * second)
    return state


def test_the_innermost_comes_first():
    snapshot = snapshot_of(in_the_middle())
    assert (snapshot["dump"], snapshot["reason"]) == ("0123456789abcdef", "signal")
    assert (snapshot["stack_depth"], snapshot["last_message_id"]) == (3, "m1")
    assert [frame["kind"] for frame in snapshot["stack"]] == ["cut", "tool", "agent"]
    assert snapshot["stack"][1]["payload"] == {"name": "search"}
    assert snapshot["stack"][0]["payload"] == '{"payload": {"te'
    assert [message["content"] for message in snapshot["messages"]] == ["where?"]


def test_tools_and_what_they_wait_for():
    snapshot = snapshot_of(in_the_middle())
    assert snapshot["tools"] == {"failed": 1, "pending": 1, "partial": 1}
    assert snapshot["tool_states"][0] == {"id": "t1", "name": "rates", "status": "failed", "error": "OSError"}
    partial, pending = snapshot["pending_function_responses"]
    assert (partial["id"], partial["arguments"], partial["deadline_s"], partial["waiting_s"]) == (
        "t3",
        '{"ci',
        None,
        1.0,
    )
    assert (pending["id"], pending["deadline_s"], pending["waiting_s"]) == ("t2", 30.0, 3.0)


def test_the_file_has_its_name_from_the_dump_and_is_private(tmp_path):
    state = in_the_middle()
    paths = [write_snapshot(tmp_path, state) for _ in range(2)]
    assert [path.name for path in paths] == [
        "context-snapshot-20231114-221325.json",
        "context-snapshot-20231114-221325-2.json",
    ]
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o600
    assert json.loads(paths[0].read_text()) == snapshot_of(state)


@given(programs())
def test_every_program_has_one(tmp_path_factory, state):
    path = write_snapshot(tmp_path_factory.mktemp("snapshot"), state)
    snapshot = json.loads(path.read_text())
    assert snapshot["stack_depth"] == len(state.context_stack)
    waiting = [call.id for call in state.tool_calls if call.status in ("pending", "partial")]
    assert [call["id"] for call in snapshot["pending_function_responses"]] == waiting[::-1]
