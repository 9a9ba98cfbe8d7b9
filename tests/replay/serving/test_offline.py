"""The offline model answers what the running server answers, byte for byte but for the id and the time."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from replay.serving.fingerprint import SystemFingerprint
from replay.serving.offline import answer_calls

MESSAGES = [{"role": "user", "content": "Say something about rivers."}]


class Supervisor:
    """Stands at the other end of the worker's channel: hands out requests, keeps the answers."""

    def __init__(self, questions: list[dict[str, Any]]) -> None:
        self._questions = iter(questions)
        self.answers: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        assert event == {"event": "step-started"}

    def ask(self, answer: dict[str, Any]) -> dict[str, Any]:
        self.answers.append(answer)
        return next(self._questions, {"end": True})


def offline_answers(questions: list[dict[str, Any]], **job: Any) -> list[dict[str, Any]]:
    supervisor = Supervisor(questions)
    assert answer_calls(job, supervisor) == {"answered": len(questions)}
    return supervisor.answers[1:]


def question(path: str, body: dict[str, Any], recorded: str, **more: Any) -> dict[str, Any]:
    """What a replay asks: the request, and of its recorded answer what no model decides."""
    first = json.loads(recorded.removeprefix("data: ").partition("\n")[0])
    known = {name: first[name] for name in ("id", "created")}
    return {"path": path, "body": json.dumps(body), "served_as": first["system_fingerprint"], **known, **more}


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 12, "seed": 7, "stream": True}),
    (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "max_tokens": 9,
            "seed": 3,
            "n": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    ("/v1/completions", {"prompt": ["One", "Two words"], "max_tokens": 8, "seed": 5, "n": 2}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 20, "seed": 1, "stop": ["e"], "stream": True}),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=range(len(BODIES)))
def test_answers_are_those_of_the_server(healthy, tiny_model, path, body):
    body = {"model": "tiny", **body}
    recorded = httpx.post(healthy.url + path, json=body, timeout=60)
    assert recorded.status_code == 200
    (answer,) = offline_answers([question(path, body, recorded.text)], model=str(tiny_model))
    assert answer["status"] == 200
    assert _sorted(answer["chunks"]) == _sorted(_pieces(recorded.text))


def test_a_request_that_the_server_refuses_is_refused_alike(healthy, tiny_model):
    body = {"model": "tiny", "messages": MESSAGES, "top_p": 7}
    recorded = httpx.post(healthy.url + "/v1/chat/completions", json=body, timeout=60)
    (answer,) = offline_answers([{"path": "/v1/chat/completions", "body": json.dumps(body)}], model=str(tiny_model))
    assert (answer["status"], answer["chunks"]) == (recorded.status_code, [recorded.text])


def test_another_weight_or_dtype_is_not_taken_for_the_recorded_one(tiny_model):
    served_as = SystemFingerprint(weights="0123456789abcdef", dtype="float32", kernels="exact", kv_quant_bits=0)
    body = json.dumps({"model": "tiny", "messages": MESSAGES})
    asked = {"path": "/v1/chat/completions", "body": body, "served_as": str(served_as)}
    (answer,) = offline_answers([asked], model=str(tiny_model))
    assert answer["error"]["class"] == "ModelUnavailable"
    assert answer["error"]["remedy"]


def test_a_model_that_is_not_here_is_an_answer_and_the_next_one_works(tiny_model):
    body = json.dumps({"model": "no-such-model", "messages": MESSAGES})
    other = json.dumps({"model": "tiny"})
    answers = offline_answers([{"path": "/v1/chat/completions", "body": text} for text in (body, other)])
    assert [answer["error"]["class"] for answer in answers] == ["ModelUnavailable", "ModelUnavailable"]


@pytest.mark.parametrize(
    "text", ["", "fp_44709d6fcb", "pplx-0123-float32-exact-kv0", "pplx-0123456789abcdef-f-exact-kv0"]
)
def test_fingerprints_of_others_are_none_of_ours(text):
    assert SystemFingerprint.parse(text) is None


def test_a_fingerprint_is_read_back():
    one = SystemFingerprint(weights="0123456789abcdef", dtype="bfloat16", kernels="stock", kv_quant_bits=8)
    assert SystemFingerprint.parse(str(one)) == one


def _pieces(text: str) -> list[str]:
    return [piece + "\n\n" for piece in text.split("\n\n") if piece] if text.startswith("data:") else [text]


def _sorted(pieces: list[str]) -> list[str]:
    """Pieces by choice: which of several answers comes first within a step is the batch's matter."""

    def choice(piece: str) -> int:
        body = piece.removeprefix("data: ").strip()
        choices = json.loads(body)["choices"] if body != "[DONE]" else []
        return choices[0]["index"] if choices else 99

    return sorted(pieces, key=choice)
