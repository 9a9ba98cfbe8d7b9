"""Which failure an endpoint's answers show: a verdict for each way in which it can fail or not."""

from __future__ import annotations

import time

import pytest

from tests.replay.targets.endpoint.endpoints import CUT, FULL, PATH, error, refusal, streamed, text
from tests.reports import findings
from tests.scripted_server import scripted_server
from tests.small_dump import failing_with


def test_a_cut_answer_is_the_recorded_failure(replay):
    with scripted_server({PATH: CUT}) as server:
        report = replay(server.url(""), repeat=2)
    assert report["verdict"] == "reproduced"
    assert report["repeat"] == {"n": 2, "reproduced": 2}
    assert report["match"] == {"identity.kind": True}
    assert report["signature"]["identity"]["kind"] == "silent-truncation"
    assert report["failure"]["message"] == "answer cut after 2 tokens of 4 that were asked for"
    assert [(one["status"], one["output_len"], one["asked_len"]) for one in report["requests"]] == [("cut", 2, 4)] * 2
    assert len(server.requests) == 4
    assert findings(report, "outside-view")


def test_a_full_answer_is_not_and_says_how_little_that_proves(replay):
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""), repeat=3)
    assert report["verdict"] == "not-reproduced"
    assert report["repeat"] == {"n": 3, "reproduced": 0}
    assert "0 of 3 tries" in findings(report, "absence-proves-little")[0]["message"]


def test_an_answer_that_nobody_counted_is_neither(replay):
    """Two events of what may be four tokens."""
    with scripted_server({PATH: streamed(text("x"), text("xxx", "length"))}) as server:
        report = replay(server.url(""))
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "endpoint-uncounted")


@pytest.mark.parametrize(
    "script",
    [
        error(500, refusal("boom")),
        error(502, b"<html>bad gateway</html>"),
        streamed(text("x"), {"error": {"message": "boom", "code": "engine-error"}}),
        streamed(text("x"), end="close"),
        streamed(text("x"), end="reset"),
        streamed(text("x")),
        ["close"],
        [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\ndata: {\n\n"],
    ],
    ids=["500", "502", "error-event", "closed", "reset", "no-finish", "no-answer", "no-json"],
)
def test_an_error_is_an_exception_and_no_truncation(replay, script):
    with scripted_server({PATH: script}) as server:
        report = replay(server.url(""), failing_with("exception", exception_type="ValueError", message="boom"))
        other = replay(server.url(""))
    assert report["verdict"] == "reproduced", report["requests"]
    assert report["signature"]["identity"]["kind"] == "exception"
    assert (other["verdict"], other["match"]) == ("different-failure", {"identity.kind": False})


def test_words_that_agree_are_said_to(replay):
    with scripted_server({PATH: error(500, refusal("boom at 0x1234"))}) as server:
        same = replay(server.url(""), failing_with("exception", message="boom at 0x9999"))
        not_same = replay(server.url(""), failing_with("exception", message="bang"))
    assert same["match"] == {"identity.kind": True, "identity.message": True}
    assert not_same["match"] == {"identity.kind": True}


@pytest.mark.parametrize(
    ("code", "verdict"),
    [("engine-error", "reproduced"), ("non-finite", "reproduced"), ("timeout", "different-failure")],
)
def test_non_finite_shows_as_an_error_unless_the_server_names_another(replay, code, verdict):
    with scripted_server({PATH: error(500, refusal("no", code=code))}) as server:
        assert replay(server.url(""), failing_with("non-finite"))["verdict"] == verdict


def test_text_that_differs_is_no_sign_of_nan(replay):
    with scripted_server({PATH: FULL}) as server:
        assert replay(server.url(""), failing_with("non-finite"))["verdict"] == "not-reproduced"


def test_a_server_that_never_answers_is_late_when_that_is_looked_for(replay):
    with scripted_server({PATH: ["hang"]}) as server:
        began = time.monotonic()
        report = replay(server.url(""), failing_with("timeout"))
    assert report["verdict"] == "reproduced"
    assert report["failure"]["message"] == "no end within 0.5 s"
    assert time.monotonic() - began < 10


def test_a_server_that_trickles_is_late_too(replay):
    trickle = [step for piece in FULL for step in (piece, 0.2)]
    with scripted_server({PATH: trickle}) as server:
        report = replay(server.url(""), failing_with("timeout"))
    assert report["verdict"] == "reproduced"
    assert report["requests"][0]["first_byte_s"] < 0.5


def test_a_server_that_is_quick_enough_is_not_late(replay):
    with scripted_server({PATH: FULL}) as server:
        assert replay(server.url(""), failing_with("timeout"))["verdict"] == "not-reproduced"
