"""Which exchange answers, by key, task and order; what is left over; differences of order in words."""

from __future__ import annotations

from typing import Any

import pytest

from dumps.exchanges.canonical import canonical_request
from dumps.schema import state_pb2 as pb
from replay.runtime.clock import VirtualClock
from replay.runtime.network.connection import ConnectFailed
from replay.runtime.network.match import Matcher
from replay.runtime.network.network import Network


def got(name: str, url: str = "http://h/a", **fields: Any) -> pb.Exchange:
    exchange = pb.Exchange(id=name, method="GET", url=url, direction="out", framing="wire", status=200)
    exchange.ended_ns = 2
    for field, value in fields.items():
        setattr(exchange, field, value)
    return exchange


def no_connection(name: str, error: str, message: str, **fields: Any) -> pb.Exchange:
    return got(name, "http://h:80", method="", error=error, error_message=message, status=0, connect_ns=7, **fields)


def take(matcher: Matcher, url: str = "http://h/a", task: str = "Task-9") -> str | None:
    found = matcher.take(canonical_request(pb.Exchange(method="GET", url=url)), task)
    return found.exchange.id if found else None


def test_equal_requests_are_answered_in_recorded_order_and_once() -> None:
    matcher = Matcher.of([got("x1"), got("x2", "http://h/b"), got("x3")])
    assert [take(matcher) for _ in range(3)] == ["x1", "x3", None]
    assert [one.id for one in matcher.left_over()] == ["x2"]


def test_a_task_with_a_name_of_its_own_gets_its_own_answers() -> None:
    exchanges = [got("x1", task="red"), got("x2", task="blue"), got("x3", task="Task-1"), got("x4", task="Task-9")]
    matcher = Matcher.of(exchanges)
    assert take(matcher, task="blue") == "x2"
    assert take(matcher, task="Task-9") == "x1"  # a counted name says nothing
    assert take(matcher, task="unheard") == "x3"


def test_inbound_exchanges_answer_nothing() -> None:
    matcher = Matcher.of([got("x1", direction="in")])
    assert take(matcher) is None
    assert matcher.left_over() == []


def network(*exchanges: pb.Exchange) -> Network:
    return Network(exchanges, clock=VirtualClock(started_ns=10**12, wall_minus_monotonic_ns=0))


def test_a_failed_connect_comes_when_it_is_the_next_that_connects() -> None:
    world = network(
        got("x1", connect_ns=5),
        got("x2"),  # on the connection of x1
        no_connection("x3", "refused", "[Errno 111] Connection refused"),
        got("x4", connect_ns=6),
    )
    first = world.connect("h", 80, tls=False)
    assert first.connect_ns == 5
    with pytest.raises(ConnectFailed, match="refused") as caught:
        world.connect("h", 80, tls=False)
    assert (caught.value.kind, caught.value.after_ns) == ("refused", 7)
    assert world.connect("H", 80, tls=False).connect_ns == 6
    assert world.connect("h", 81, tls=False).connect_ns == 0
    assert world.connect("other", 80, tls=False).connect_ns == 0
    assert [one.id for one in world.left_over()] == ["x1", "x2", "x4"]


def test_a_failed_connect_needs_no_time_to_be_known() -> None:
    failed = no_connection("x1", "refused", "")
    failed.ClearField("connect_ns")
    with pytest.raises(ConnectFailed):
        network(failed, got("x2", connect_ns=6)).connect("h", 80, tls=False)


def test_a_connection_that_asked_nothing_leaves_its_exchange_to_the_next() -> None:
    world = network(got("x1", connect_ns=5), got("x2", connect_ns=6))
    world.connect("h", 80, tls=False).close()
    assert world.connect("h", 80, tls=False).connect_ns == 5


@pytest.mark.parametrize(
    ("error", "message", "kind"),
    [
        ("timeout", "timed out", "silence"),
        ("timeout", "[Errno 110] Connection timed out", "timeout"),
        ("", "closed by this program before the response was complete", "silence"),
        ("dns", "[Errno -2] Name or service not known", "dns"),
    ],
)
def test_only_the_systems_own_timeout_is_played(error: str, message: str, kind: str) -> None:
    with pytest.raises(ConnectFailed) as caught:
        network(no_connection("x1", error, message)).connect("h", 80, tls=False)
    assert caught.value.kind == kind


def test_a_handshake_fails_on_a_connection_that_stands() -> None:
    message = "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"
    exchange = no_connection("x1", "tls", message)
    connection = network(exchange).connect("h", 80, tls=None)
    assert connection.handshake_failure is not None
    assert connection.handshake_failure.message == message
    with pytest.raises(ConnectFailed):
        network(exchange).connect("h", 80, tls=True)


def ask(world: Network, path: str) -> None:
    world.connect("h", 80, tls=False).send(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())


def test_another_order_is_explained() -> None:
    world = network(got("x1", "http://h/a", task="t"), got("x2", "http://h/b", task="t"), got("x3", "http://h/c"))
    for path in ("/b", "/a", "/c"):
        ask(world, path)
    [finding] = world.findings()
    assert finding.kind == "order"
    assert finding.message == (
        "x2 GET http://h/b (task 't') was asked before x1 GET http://h/a (task 't'); in the recording it came after "
        "it, in one task: the program asks in another order"
    )


def test_an_order_that_was_a_race_is_called_one() -> None:
    one = got("x1", "http://h/a", task="t", started_ns=10, ended_ns=50)
    overlapping = got("x2", "http://h/b", task="u", started_ns=20, ended_ns=60)
    after = got("x2", "http://h/b", task="u", started_ns=60, ended_ns=70)
    for other, words in ((overlapping, "their order was never certain"), (after, "another task now runs ahead")):
        world = network(one, other)
        ask(world, "/b")
        ask(world, "/a")
        assert words in world.findings()[0].message


def test_the_recorded_order_gives_no_finding() -> None:
    world = network(got("x1"), got("x2", "http://h/b"))
    ask(world, "/a")
    ask(world, "/b")
    assert world.findings() == []
