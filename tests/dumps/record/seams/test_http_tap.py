"""One connection's bytes become exchanges, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.record.seams.http_tap import Asker, HttpTap
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from tests.dumps.record.seams.conversations import (
    CHUNKED,
    CONTINUED,
    CONVERSATIONS,
    GET,
    LENGTH,
    POST,
    SECRET,
    make_log,
    make_tap,
    pieces_of,
    play,
    wire,
)


def without_times(log: WorldLog) -> list[pb.Exchange]:
    found = []
    for exchange in log.exchanges:
        copy = pb.Exchange()
        copy.CopyFrom(exchange)
        copy.ClearField("chunks")
        copy.chunks.add(data=wire(exchange), size=sum(chunk.size for chunk in exchange.chunks))
        copy.started_ns = copy.sent_ns = 0
        copy.ClearField("ended_ns")
        copy.ClearField("connect_ns")
        copy.ClearField("call_site")
        found.append(copy)
    return found


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation(name):
    log = make_log()
    play(CONVERSATIONS[name], [], log)
    assert not log.lost
    assert [exchange.error for exchange in log.exchanges] == [""] * len(CONVERSATIONS[name])
    for exchange, (request, response) in zip(log.exchanges, CONVERSATIONS[name], strict=True):
        assert exchange.method == request.split()[0].decode()
        assert exchange.url == "http://api.example" + request.split()[1].decode()
        assert len(wire(exchange)) == len(response)
        assert exchange.HasField("ended_ns")
        assert SECRET not in exchange.SerializeToString()


def test_fields_of_an_exchange():
    log = make_log()
    play(CONVERSATIONS["keep-alive"], [], log)
    first, second, head, empty, streamed = log.exchanges
    assert (first.started_ns, first.connect_ns, first.sent_ns) == (1_000, 500, 2_010)
    assert (second.started_ns, second.sent_ns) == (2_030, 2_030)
    assert not second.HasField("connect_ns"), "the connection was reused"
    assert (first.status, second.status, head.status, empty.status, streamed.status) == (200, 201, 200, 204, 200)
    assert [(header.key, header.value) for header in first.response_headers] == [("Content-Length", "5"), ("X-Id", "7")]
    assert [(header.key, header.value) for header in first.request_headers] == [("Host", "api.example")]
    assert second.request_body == b'{"stream":true}'
    assert streamed.request_body == b"abcdefg", "after transfer decoding"
    assert wire(streamed) == CONTINUED, "an interim response belongs to the one that follows"
    assert (first.client, first.framing, first.direction, first.task) == ("test", "wire", "out", "MainThread")
    assert first.call_site[0].function == "make_tap"
    assert first.call_site[0].filename.endswith("conversations.py")
    assert [exchange.occurrence for exchange in log.exchanges] == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("name", CONVERSATIONS)
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_cuts_change_nothing(name, cuts):
    whole, cut = make_log(), make_log()
    play(CONVERSATIONS[name], [], whole)
    play(CONVERSATIONS[name], cuts, cut)
    assert without_times(cut) == without_times(whole)
    assert cut.lost == whole.lost


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_byte_by_byte(name):
    whole, bytewise = make_log(), make_log()
    play(CONVERSATIONS[name], [], whole)
    play(CONVERSATIONS[name], list(range(1000)), bytewise)
    assert without_times(bytewise) == without_times(whole)
    for exchange, (_, response) in zip(bytewise.exchanges, CONVERSATIONS[name], strict=True):
        assert [chunk.size for chunk in exchange.chunks] == [1] * len(response)


@given(cuts=st.lists(st.integers(0, 400), max_size=8), answers=st.lists(st.integers(0, 400), max_size=8))
def test_pipelined_requests_and_answers(cuts, answers):
    conversation = CONVERSATIONS["keep-alive"]
    whole, log = make_log(), make_log()
    play(conversation, [], whole)
    tap = make_tap(log)
    for piece in pieces_of(b"".join(request for request, _ in conversation), cuts):
        tap.sent(piece, 2_000)
    for piece in pieces_of(b"".join(response for _, response in conversation), answers):
        tap.received(piece, 3_000)
    tap.peer_closed(4_000)
    assert [wire(exchange) for exchange in log.exchanges] == [response for _, response in conversation]
    assert [exchange.method for exchange in log.exchanges] == [exchange.method for exchange in whole.exchanges]


def test_chunks_are_what_the_socket_gave_with_their_delays():
    log = make_log()
    tap = make_tap(log)
    tap.sent(GET[:10], 2_000)
    tap.sent(GET[10:], 2_100)
    tap.flushed(2_200)
    for at_ns, piece in [(2_500, LENGTH[:7]), (2_600, LENGTH[7:40]), (3_000, LENGTH[40:])]:
        tap.received(piece, at_ns)
    (exchange,) = log.exchanges
    assert exchange.sent_ns == 2_200
    assert [chunk.data for chunk in exchange.chunks] == [LENGTH[:7], LENGTH[7:40], LENGTH[40:]]
    assert [chunk.delay_ns for chunk in exchange.chunks] == [300, 100, 400]
    assert exchange.ended_ns == 3_000


def test_one_in_flight_is_in_the_log_as_far_as_it_came():
    log = make_log()
    tap = HttpTap(log, client="test", scheme="https", host="::1", port=8443)
    tap.connecting(1_000)
    (exchange,) = log.exchanges
    assert (exchange.url, exchange.method) == ("https://[::1]:8443", "")
    tap.connected(1_100)
    tap.sent(POST[:-5], 1_200)
    assert (exchange.method, exchange.url) == ("POST", "https://[::1]:8443/v1/chat")
    assert exchange.request_body == b'{"stream":'
    assert exchange.sent_ns == 0
    tap.sent(POST[-5:], 1_300)
    tap.received(CHUNKED[:70], 1_400)
    assert (exchange.status, wire(exchange), exchange.HasField("ended_ns")) == (201, CHUNKED[:70], False)


def test_room_for_bytes_and_for_exchanges():
    log = make_log(bytes=60, exchanges=2)
    play([(GET, LENGTH)] * 3, [], log)
    assert [wire(exchange) for exchange in log.exchanges] == [LENGTH, b""]
    assert [chunk.size for chunk in log.exchanges[1].chunks] == [len(LENGTH)]
    assert log.lost["exchanges"] == 1
    assert log.lost["exchange_bytes"] == len(LENGTH), "what is not in the log does not count"


def test_who_asked_is_told_by_the_seam():
    log = make_log()
    tap = make_tap(log)
    tap.asked_by(Asker("agent", [pb.Frame(function="ask", in_app=True)]))
    tap.sent(GET, 2_000)
    tap.received(LENGTH, 2_100)
    tap.sent(GET, 2_200)
    assert [(one.task, one.occurrence) for one in log.exchanges] == [("agent", 0), ("MainThread", 0)]
    assert [frame.function for frame in log.exchanges[0].call_site] == ["ask"]
