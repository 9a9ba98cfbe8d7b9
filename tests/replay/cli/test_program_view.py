"""``pplx-state dump`` of a recorded program, as a person sees it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given

from dumps.ledger import record
from dumps.schema import state_pb2 as pb
from dumps.schema.writer import write_dump
from dumps.strategies.programs import programs
from replay.cli.groups import state as state_group

SECOND = 1_000_000_000


@pytest.fixture
def state() -> pb.RuntimeState:
    state = pb.RuntimeState()
    state.manifest.id, state.manifest.reason, state.manifest.record_level = "0123456789abcdef", "exception", "full"
    program = state.program
    program.entry, program.kind, program.started_ns = "agent:app", "asgi", SECOND
    inbound = state.exchanges.add(id="x1", direction="in", framing="body", method="POST", url="http://agent/ask")
    inbound.started_ns = 2 * SECOND
    asked = state.exchanges.add(id="x2", direction="out", framing="wire", method="GET", url="http://tools/rates")
    asked.started_ns, asked.sent_ns, asked.ended_ns = 2 * SECOND, 2 * SECOND, 5 * SECOND
    asked.within, asked.error, asked.status = "x1", "reset", 200
    asked.chunks.add(data=b"a", size=1)
    call = state.tool_calls.add(id="call_7", name="rates", status="pending", within="x1", started_ns=2 * SECOND)
    call.deadline_ns, call.arguments_json = 32 * SECOND, '{"of": "EUR"}'
    state.context_stack.add(stack_depth=1, kind="request", payload_json='{"payload": {"url": "http://agent/ask"}}')
    messages = '[{"id": "m1", "role": "user", "content": "what is it worth?"}]'
    turn = state.context_stack.add(stack_depth=2, kind="turn", last_message_id="m1")
    turn.payload_json = f'{{"payload": {{}}, "messages": {messages}}}'
    failure = state.failures.add(kind="exception", exception_type="OSError", frame="agent.py:rates", step=2)
    failure.message, failure.exchange = "cut", "x1"
    record(state, "entropy", pb.ABSENT, "3 entropy did not fit")
    return state


def shown(state: pb.RuntimeState, tmp_path) -> list[str]:
    write_dump(tmp_path / "one.pplx", state)
    result = CliRunner().invoke(state_group, ["dump", str(tmp_path / "one.pplx")], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return [line.strip() for line in result.stdout.splitlines()]


def section(lines: list[str], heading: str) -> list[str]:
    rest = lines[lines.index(heading) + 1 :]
    return rest[: rest.index("")] if "" in rest else rest


def test_what_failed_says_where_and_in_whose_request(state, tmp_path):
    (words,) = section(shown(state, tmp_path), "What failed")
    assert words == (
        "OSError was raised in agent.py:rates while POST http://agent/ask (x1) was served, after 2 calls. "
        'Message: "cut"'
    )


def test_calls_to_the_world(state, tmp_path):
    lines = shown(state, tmp_path)
    inbound, asked = (line.split() for line in section(lines, "Exchanges")[1:])
    assert inbound == ["x1", "in", "POST", "http://agent/ask", "0", "+1.000", "s", "in", "flight"]
    assert asked == ["x2", "x1", "out", "GET", "http://tools/rates", "reset", "1", "+1.000", "s", "3.000", "s"]
    (call,) = section(lines, "Tool calls")[1:]
    assert call.split()[:5] == ["call_7", "x1", "rates", '{"of":', '"EUR"}']
    assert "nothing yet, deadline after 30.000 s" in call


def test_the_context_innermost_first(state, tmp_path):
    lines = section(shown(state, tmp_path), "Context stack, innermost first")
    assert lines == [
        "2 turn, last message m1",
        "user m1: what is it worth?",
        '1 request {"url": "http://agent/ask"}',
    ]


def test_tasks_are_shown_by_the_programs_own_frames(state, tmp_path):
    state.threads.add(name="MainThread", current=True, kind="thread").frames.add(function="select", filename="s.py")
    task = state.threads.add(name="Task-1", kind="asyncio-task")
    task.frames.add(function="sleep", filename="asyncio/tasks.py", line=9)
    task.frames.add(function="search", filename="agent.py", line=4, in_app=True)
    bare = state.threads.add(name="Task-2", kind="asyncio-task")
    bare.frames.add(function="serve", filename="lib.py", line=3)
    state.threads.add(name="pool", kind="thread")
    lines = section(shown(state, tmp_path), "Stacks")
    assert lines == [
        "task Task-1:",
        "search (agent.py:4)",
        "task Task-2:",
        "serve (lib.py:3)",
        "thread MainThread, in which it showed:",
        "select (s.py:0)",
        "1 more stack: --field threads",
    ]


@pytest.mark.parametrize(
    ("finished", "ended", "reason", "words"),
    [
        (True, True, "exception", "it raised"),
        (True, True, "timeout", "it came to its end"),
        (False, True, "signal", "it was ended from outside"),
        (False, False, "exception", "it was going on"),
    ],
)
def test_how_it_ended(state, tmp_path, finished, ended, reason, words):
    state.program.finished, state.manifest.reason = finished, reason
    if ended:
        state.program.ended_ns = 9 * SECOND
    assert section(shown(state, tmp_path), "Program")[0].endswith(f"; {words}")


def test_what_is_absent_is_said_and_an_engine_is_not_spoken_of(state, tmp_path):
    lines = shown(state, tmp_path)
    assert "entropy  absent  3 entropy did not fit" in section(lines, "Fidelity ledger")
    headings = {"Model and engine", "Requests", "Last steps", "KV cache at the end of the record", "Trace", "Sections"}
    assert not headings & set(lines)


def test_the_one_that_failed_is_shown_however_many_came_after_it(state, tmp_path):
    for number in range(50):
        state.exchanges.add(id=f"later{number}", direction="out", framing="wire", url="http://b")
    rows = section(shown(state, tmp_path), "Exchanges")
    assert rows[1].startswith("x1 ")
    assert rows[-1].startswith("... and 31 exchanges before these")


@pytest.mark.parametrize(
    ("kind", "invariant", "exchange", "words"),
    [
        ("timeout", "program", "", "The program did not finish in time; it was in agent.py:rates, after 2 calls."),
        ("timeout", "request", "x1", "POST http://agent/ask (x1) did not finish in time; it was in agent.py:rates"),
        (
            "exception",
            "client-gone",
            "x1",
            "The client of POST http://agent/ask (x1) went away; the program was in agent.py",
        ),
    ],
)
def test_other_failures_in_words(state, tmp_path, kind, invariant, exchange, words):
    failure = state.failures[0]
    failure.kind, failure.invariant, failure.exchange, failure.exception_type = kind, invariant, exchange, ""
    assert section(shown(state, tmp_path), "What failed")[0].startswith(words)


def test_what_a_terminal_could_obey_is_escaped(state, tmp_path):
    hostile = "\x1b[31m[red]\u202e"
    state.exchanges[0].url = state.tool_calls[0].name = state.program.entry = state.context_stack[0].kind = hostile
    state.context_stack[1].payload_json = f'["{hostile}"]'
    text = "\n".join(shown(state, tmp_path))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]" in text  # and no markup of ours


@given(programs())
def test_every_program_can_be_shown(tmp_path_factory, state):
    assert "Program" in shown(state, tmp_path_factory.mktemp("shown"))


def test_of_a_long_chain_of_calls_in_a_library_the_programs_own_frames_are_shown(state, tmp_path):
    raised = state.exceptions.add(type="requests.ReadTimeout", message="slow")
    for number in range(9):
        raised.frames.add(function=f"inner{number}", filename="requests/adapters.py", line=number)
    for name in ("ask", "main"):
        raised.frames.add(function=name, filename="agent.py", line=7, in_app=True)
    write_dump(tmp_path / "d.pplx", state)
    lines = CliRunner().invoke(state_group, ["dump", str(tmp_path / "d.pplx")]).stdout.splitlines()
    at = lines.index("  requests.ReadTimeout: slow")
    assert [line.split("(")[0].strip() for line in lines[at + 1 : at + 7]] == [
        "inner0", "inner1", "inner2", "...", "ask", "main",
    ]  # fmt: skip
