"""Requests as bytes, whole and one by one, and what comes back for them."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from replay.runtime.clock import VirtualClock
from replay.runtime.errors import ResponseNotRecorded, UnreadableRequest, UnrecordedRequest
from replay.runtime.network.connection import Connection
from replay.runtime.network.network import Network

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
POST = b"POST /a?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\n" + b'{"a":1}'
IN_CHUNKS = (
    b"POST /a?x=1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b'3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
)


def exchange(number: int = 1, **fields: Any) -> pb.Exchange:
    one = pb.Exchange(
        id=f"x{number}", method="POST", url="http://h/a?x=1", request_body=b'{"a": 1}', direction="out", framing="wire"
    )
    one.status, one.started_ns, one.sent_ns, one.ended_ns = 200, 100, 100, 200
    one.response_headers.add(key="Content-Length", value="2")
    one.chunks.add(data=ANSWER, size=len(ANSWER), delay_ns=50)
    for name, value in fields.items():
        setattr(one, name, value)
    return one


def network(*exchanges: pb.Exchange) -> Network:
    clock = VirtualClock(started_ns=10**12, wall_minus_monotonic_ns=0)
    return Network(exchanges, clock=clock)


def connect(world: Network, *, tls: bool = False) -> Connection:
    return world.connect("h", 443 if tls else 80, tls=tls)


def given_back(connection: Connection) -> bytes:
    data = b""
    while (event := connection.peek()) is not None and event.kind == "data":
        data += connection.take().data
    return data


@pytest.mark.parametrize("request_bytes", [POST, IN_CHUNKS])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_request_is_answered_with_its_last_byte(request_bytes: bytes, size: int) -> None:
    connection = connect(network(exchange()))
    pieces = [request_bytes[at : at + size] for at in range(0, len(request_bytes), size)]
    for piece in pieces[:-1]:
        connection.send(piece)
        assert connection.peek() is None
    connection.send(pieces[-1])
    event = connection.peek()
    assert event is not None
    assert connection.wait_ns(event) == 50
    assert given_back(connection) == ANSWER
    assert connection.peek() is None  # it is kept alive


@given(st.lists(st.integers(1, 2 * len(POST)), max_size=6))
def test_two_requests_however_they_are_cut(cuts: list[int]) -> None:
    second = exchange(2)
    second.chunks[0].data = ANSWER.replace(b"ok", b"no")
    connection = connect(network(exchange(), second))
    both = POST + IN_CHUNKS
    places = [0, *sorted({min(cut, len(both)) for cut in cuts}), len(both)]
    for start, end in pairwise(places):
        connection.send(both[start:end])
    assert given_back(connection) == ANSWER + ANSWER.replace(b"ok", b"no")


def test_continue_is_given_before_the_body_and_not_again() -> None:
    recorded = exchange()
    recorded.chunks[0].data = b"HTTP/1.1 100 Continue\r\n\r\n"
    recorded.chunks[0].size = len(recorded.chunks[0].data)
    recorded.chunks.add(data=ANSWER, size=len(ANSWER), delay_ns=5)
    connection = connect(network(recorded))
    head, _, body = POST.partition(b"\r\n\r\n")
    connection.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
    assert given_back(connection) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(body)
    assert given_back(connection) == ANSWER


def test_data_is_taken_in_parts_and_an_end_stays() -> None:
    connection = connect(network(exchange(error="reset")))
    connection.send(POST)
    assert connection.take(9).data == ANSWER[:9]
    assert given_back(connection) == ANSWER[9:]
    assert [connection.take().kind for _ in range(3)] == ["reset"] * 3
    connection.clock.advance(1000)
    with pytest.raises(BrokenPipeError):
        connection.send(POST)


@pytest.mark.parametrize(
    "garbage", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n"]
)
def test_what_is_no_http_is_refused_and_noted(garbage: bytes) -> None:
    world = network(exchange())
    with pytest.raises(UnreadableRequest, match="are no HTTP"):
        connect(world).send(garbage)
    assert len(world.refusals) == 1


def test_a_tunnel_leads_to_the_server_behind_the_proxy() -> None:
    world = network(exchange(url="https://h/a?x=1"))
    connection = world.connect("proxy", 3128, tls=False)
    connection.send(b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n")
    assert given_back(connection).startswith(b"HTTP/1.1 200 ")
    connection.tls = True
    connection.send(POST)
    assert given_back(connection) == ANSWER


def test_a_proxy_is_asked_for_whole_urls() -> None:
    connection = network(exchange()).connect("proxy", 3128, tls=False)
    connection.send(POST.replace(b"/a", b"http://h/a"))
    assert given_back(connection) == ANSWER


def test_secrets_are_replaced_as_the_recorder_did() -> None:
    recorded = exchange(url="http://h/a?api_key=REMOVED", request_body=b'{"password":"REMOVED"}')
    connection = connect(network(recorded))
    body = b'{"password":"hunter2"}'
    connection.send(b"POST /a?api_key=abc HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert given_back(connection) == ANSWER


def test_an_answer_that_was_left_out_is_refused() -> None:
    recorded = exchange()
    recorded.chunks[0].data = b""
    world = network(recorded)
    with pytest.raises(ResponseNotRecorded, match="x1"):
        connect(world).send(POST)
    assert [finding.kind for finding in world.findings()] == ["refused"]


def test_an_unrecorded_request_teaches() -> None:
    recorded = exchange(task="agent")
    recorded.call_site.add(function="ask", filename="agent.py", line=41)
    world = network(recorded)
    with pytest.raises(UnrecordedRequest) as caught:
        connect(world).send(POST.replace(b'"a":1', b'"a":2'))
    text = str(caught.value)
    assert "replayed (your code): POST http://h/a?x=1" in text
    assert "nearest recorded (dump): x1 POST http://h/a?x=1 (task 'agent', at agent.py:41 in ask)" in text
    assert "    body.a\n      recorded (dump): 1\n      replayed (your code): 2" in text
    assert "--fork" in caught.value.remedy
    assert [finding.kind for finding in world.findings()] == ["unrecorded", "left-over"]
    assert "x1 POST http://h/a?x=1 was recorded and not asked" in world.findings()[1].message
    assert world.findings()[1].call_site[0].line == 41


def test_asking_once_more_than_recorded_says_so() -> None:
    world = network(exchange())
    connection = connect(world)
    connection.send(POST)
    with pytest.raises(UnrecordedRequest, match="recorded once"):
        connection.send(POST)
    with pytest.raises(UnrecordedRequest, match="no outbound request at all"):
        connect(network()).send(POST)


def test_a_request_that_was_never_finished_is_not_left_over() -> None:
    world = network(exchange(sent_ns=0))
    connection = connect(world)
    connection.send(POST[:-3])
    connection.close()
    connection.close()
    assert world.findings() == []


@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_error_that_teaches_or_in_waiting(data: bytes) -> None:
    world = network(exchange())
    with contextlib.suppress(UnreadableRequest, UnrecordedRequest):
        connect(world).send(data)
        return
    assert world.refusals[0].remedy


def test_a_long_answer_is_taken_in_pieces_and_no_piece_copies_the_rest():
    long = exchange(framing="body")
    long.chunks[0].data, long.chunks[0].size = bytes(range(256)) * 40, 10_240
    connection = connect(network(long))
    connection.send(POST)
    connection.take()  # the head
    whole = connection.peek()
    pieces = []
    while (event := connection.peek()) is not None and event.kind == "data":
        assert event is whole
        pieces.append(connection.take(1000).data)
    assert [len(piece) for piece in pieces] == [1000] * 10 + [240]
    assert whole is not None
    assert b"".join(pieces) == whole.data
