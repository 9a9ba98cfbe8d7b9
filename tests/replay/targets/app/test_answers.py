"""The program's side of its model: what is asked, what is not, and what comes of an answer that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.network.play import is_whole
from replay.targets.app.answers import ReplayedAnswers

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
FINGERPRINT = "pplx-0123456789abcdef-float32-exact-kv0"


class Asked:
    """The other end of the pipe: keeps the questions, gives one reply."""

    def __init__(self, reply: dict[str, Any] | None = None) -> None:
        self.questions: list[dict[str, Any]] = []
        self.reply = reply or {"status": 200, "chunks": ["data: 1\n\n", "data: ü\n\n"]}

    def __call__(self, question):
        self.questions.append(dict(question))
        return self.reply


def request(body: Any, recorded: bytes = b"") -> pb.Exchange:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    exchange = pb.Exchange(method="POST", url="http://h/v1/chat/completions?x=1", request_body=text)
    exchange.request_headers.add(key="X-PPLX-Internal-Flags", value="early-exit=0.8")
    if recorded:
        exchange.chunks.add(data=recorded[:20], size=20)
        exchange.chunks.add(data=recorded[20:], size=len(recorded) - 20)
    return exchange


@pytest.mark.parametrize("prefix", [b"", b"data: ", b"1f\r\ndata: "])
def test_what_the_recorded_answer_says_of_itself_goes_along(prefix):
    asked = Asked()
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    recorded = head + prefix + json.dumps({"id": "c-1", "created": 7, "system_fingerprint": FINGERPRINT}).encode()
    answer = ReplayedAnswers(asked).answer(request(BODY, recorded))
    assert answer is not None
    (question,) = asked.questions
    assert json.loads(question.pop("body")) == BODY
    assert question == {
        "path": "/v1/chat/completions",
        "flags": "early-exit=0.8",
        "served_as": FINGERPRINT,
        "id": "c-1",
        "created": 7,
    }
    assert [chunk.data.decode() for chunk in answer.chunks] == ["data: 1\n\n", "data: ü\n\n"]
    assert (answer.status, answer.framing) == (200, "body")
    assert answer.response_headers[0].value == "application/json"
    assert is_whole(answer)  # else a client that gets it waits for the rest for ever


def test_a_stream_is_one():
    answer = ReplayedAnswers(Asked()).answer(request({**BODY, "stream": True}))
    assert answer is not None
    assert answer.response_headers[0].value.startswith("text/event-stream")


@pytest.mark.parametrize(
    "recorded", [b"HTTP/1.1 200 OK\r\n\r\n" + b'{"id" broken', b"no json here, of any kind at all"]
)
def test_an_answer_that_says_nothing_of_itself(recorded):
    asked = Asked()
    ReplayedAnswers(asked).answer(request(BODY, recorded))
    assert (asked.questions[0]["served_as"], asked.questions[0]["id"]) == ("", "")


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": None}, {"temperature": 0.7}, {"temperature": 1, "seed": None}]
)
def test_a_random_answer_without_a_seed_is_not_asked_for_and_that_is_told_once(settings):
    asked = Asked()
    answers = ReplayedAnswers(asked)
    body = {key: value for key, value in BODY.items() if key != "temperature"} | settings
    assert answers.answer(request(body)) is None
    assert answers.answer(request(body)) is None
    assert asked.questions == []
    assert answers.answered == 0
    (problem,) = answers.problems
    assert "names no seed" in problem["message"]


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.0}, {"temperature": 0.7, "seed": 3}])
def test_a_certain_answer_is_asked_for(settings):
    answers = ReplayedAnswers(Asked())
    assert answers.answer(request(BODY | settings)) is not None
    assert (answers.answered, answers.problems) == (1, [])


@pytest.mark.parametrize("body", [b"", b"\xff", b"[1]", b"nonsense", b"[" * 100_000])
def test_a_request_that_is_no_object_is_left_to_the_record(body):
    asked = Asked()
    assert ReplayedAnswers(asked).answer(request(body)) is None
    assert asked.questions == []


def test_an_error_of_the_model_is_kept_once_for_each_reason():
    problem = {"class": "ModelUnavailable", "message": "no weights", "remedy": "pull them"}
    asked = Asked({"error": problem})
    answers = ReplayedAnswers(asked)
    assert answers.answer(request(BODY)) is None
    assert answers.answer(request(BODY)) is None
    assert len(asked.questions) == 2
    assert (answers.answered, answers.problems) == (0, [problem])


def test_a_request_that_our_server_refuses_keeps_its_recorded_answer():
    """Recorded with a server that knows more: a refusal here would be a failure that never was."""
    answers = ReplayedAnswers(Asked({"status": 400, "chunks": ['{"error": {"message": "Unknown parameter: tools"}}']}))
    assert answers.answer(request(BODY)) is None
    assert "Unknown parameter: tools" in answers.problems[0]["message"]
    assert answers.answered == 0
