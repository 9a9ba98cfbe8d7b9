"""The log of a program that goes on for days: what it lets go, and what it must not."""

from __future__ import annotations

from dumps.record.recorder import RecordLevel
from dumps.record.seams.log import LogLimits, WorldLog, inbound
from dumps.schema import state_pb2 as pb


def served(log: WorldLog, *, over: bool, calls: int = 1) -> pb.Exchange:
    """An inbound exchange, and what was asked for it: ``calls`` exchanges and as many tool calls, all of them over."""
    request = log.add_exchange("in")
    assert request is not None
    token = inbound.set(request.id)
    try:
        for _ in range(calls):
            asked, call = log.add_exchange(), log.add_tool_call("search")
            assert asked is not None
            assert call is not None
            asked.request_body = b"12345"
            assert log.has_room(5)
            asked.ended_ns = call.finished_ns = 1
    finally:
        inbound.reset(token)
    if over:
        request.ended_ns = 1
    return request


def test_what_is_asked_belongs_to_what_is_served():
    log = WorldLog(level=RecordLevel.FULL)
    request = served(log, over=True)
    alone = log.add_exchange()
    assert [one.within for one in log.exchanges] == ["", request.id, ""]
    assert [one.direction for one in log.exchanges] == ["in", "out", "out"]
    assert [call.within for call in log.tool_calls] == [request.id]
    assert alone is not None
    assert (request.framing, alone.framing) == ("body", "wire")


def test_calls_of_requests_that_have_ended_are_let_go_and_nothing_else():
    log = WorldLog(level=RecordLevel.FULL, limits=LogLimits(bytes=20))
    served(log, over=True)
    live = served(log, over=False, calls=2)
    running = log.add_exchange()
    assert not log.has_room(6)

    log.forget(live=[live.id], before_ns=0)
    assert running is not None
    kept = [one.id for one in log.exchanges]
    assert kept[0] == live.id
    assert kept[-1] == running.id
    assert [one.within for one in log.exchanges] == ["", live.id, live.id, ""]
    assert [call.within for call in log.tool_calls] == [live.id, live.id]
    assert log.forgotten == {"exchanges": 2, "tool_calls": 1}
    assert log.has_room(10)  # theirs has come free
    assert not log.has_room(1)


def test_of_files_and_entropy_what_is_older_is_let_go_but_for_the_random_states():
    log = WorldLog(level=RecordLevel.FULL)
    for time_ns in (1, 2):
        log.add_syscall(pb.Syscall(name="read", time_ns=time_ns))
        log.add_entropy(pb.EntropyDraw(source="os.urandom", time_ns=time_ns))
    log.add_entropy(pb.EntropyDraw(source="random.state", time_ns=0))
    log.forget(live=[], before_ns=2)
    assert [call.time_ns for call in log.syscalls] == [2]
    assert [(draw.source, draw.time_ns) for draw in log.entropy] == [("os.urandom", 2), ("random.state", 0)]


def test_requests_are_counted_on_while_one_of_their_task_is_kept():
    log = WorldLog(level=RecordLevel.FULL)
    for task in ("gone", "stays"):
        one = log.add_exchange()
        assert one is not None
        one.task = task
        assert log.next_occurrence(task, "key") == 0
        if task == "gone":
            one.ended_ns = 1
    log.forget(live=[], before_ns=0)
    assert [log.next_occurrence(task, "key") for task in ("gone", "stays")] == [0, 1]


def test_how_full_it_is():
    log = WorldLog(level=RecordLevel.FULL, limits=LogLimits(exchanges=4, tool_calls=2, bytes=100))
    assert log.fullness() == 0
    log.add_exchange()
    assert log.fullness() == 0.25
    log.add_tool_call("search")
    assert log.fullness() == 0.5
    assert log.has_room(75)
    assert log.fullness() == 0.75
