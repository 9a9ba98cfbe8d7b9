"""How an exchange ends whose connection never came about, broke, or was closed early."""

from __future__ import annotations

import pytest

from dumps.record.seams.http_tap import GIVEN_UP, HttpTap
from tests.dumps.record.seams.conversations import CHUNKED, GET, LENGTH, STREAMED, make_log, make_tap, play, wire


@pytest.mark.parametrize("kind", ["dns", "refused", "timeout", "tls"])
def test_no_connection(kind):
    log = make_log()
    tap = HttpTap(log, client="test", scheme="http", host="api.example", port=80)
    tap.connecting(1_000)
    tap.connect_failed(kind, "as raised, token=abc", 3_000)
    (exchange,) = log.exchanges
    assert (exchange.error, exchange.error_message) == (kind, "as raised, token=REMOVED")
    assert (exchange.url, exchange.method, exchange.connect_ns, exchange.ended_ns) == (
        "http://api.example:80", "", 2_000, 3_000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "error", "message"),
    [
        (lambda tap: tap.peer_closed(5_000), "closed", "the peer closed the connection"),
        (lambda tap: tap.closed(5_000), "", GIVEN_UP),
        (lambda tap: tap.failed("reset", "Connection reset by peer", 5_000), "reset", "Connection reset by peer"),
        (lambda tap: tap.failed("timeout", "timed out", 5_000), "timeout", "timed out"),
        (lambda tap: tap.raised(ConnectionResetError(104, "gone")), "reset", "[Errno 104] gone"),
    ],
)
@pytest.mark.parametrize("came", [b"", CHUNKED[:30], CHUNKED[:-4]])
def test_a_connection_that_ends_early(end, error, message, came):
    log = make_log()
    tap = make_tap(log)
    tap.sent(GET, 2_000)
    tap.received(came, 2_100)
    end(tap)
    (exchange,) = log.exchanges
    assert (exchange.error, exchange.error_message, wire(exchange)) == (error, message, came)
    assert exchange.HasField("ended_ns")


@pytest.mark.parametrize("end", ["peer_closed", "failed", "closed"])
def test_what_is_written_into_a_broken_connection_is_no_request(end):
    log = make_log()
    tap = make_tap(log)
    tap.sent(STREAMED[:-14], 2_000)
    if end == "closed":
        tap.write_raised(BrokenPipeError(32, "Broken pipe"))
        tap.closed(2_100)
    else:
        getattr(tap, end)(*(("reset", "gone") if end == "failed" else ()), 2_100)
    tap.sent(STREAMED[-14:], 2_200)
    tap.closed(2_300)
    (exchange,) = log.exchanges
    assert (exchange.method, exchange.request_body, exchange.sent_ns, exchange.ended_ns) == ("PUT", b"abc", 0, 2_100)
    assert exchange.error in ("closed", "reset")
    assert not log.lost


def test_an_end_between_requests_is_nobodys():
    log = make_log()
    play([(GET, LENGTH)], [], log)
    tap = make_tap(log)
    assert len(log.exchanges) == 2
    tap.closed(9_000)
    assert [exchange.error for exchange in log.exchanges] == [""], "a connection that nobody used is no exchange"


def test_a_request_that_could_not_be_written():
    log = make_log()
    tap = make_tap(log)
    tap.sent(GET, 2_000)
    tap.write_raised(BrokenPipeError(32, "Broken pipe"))
    tap.closed(2_100)
    assert [(one.method, one.error) for one in log.exchanges] == [("GET", "reset")]
    answered = make_tap(log)
    answered.sent(STREAMED[:-5], 2_000)
    answered.write_raised(BrokenPipeError(32, "Broken pipe"))
    answered.received(LENGTH, 2_050)
    answered.closed(2_100)
    assert (log.exchanges[1].error, log.exchanges[1].status) == ("", 200), "it was refused with an answer"
