"""Requests that a recorded program made to its model, sent to an endpoint."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from dumps.schema import state_pb2 as pb
from tests.replay.targets.endpoint.endpoints import FULL, refusal, serving
from tests.reports import findings
from tests.scripted_server import scripted_server


def recorded_program(*, level: str = "full", status: int = 500) -> pb.RuntimeState:
    """A program that asked its model twice; the second answer had this status."""
    state = pb.RuntimeState(program=pb.Program(entry="agent:main", kind="block"))
    state.manifest.CopyFrom(pb.Manifest(id="0123456789abcdef", reason="exception", record_level=level, pid=1))
    for number, code in enumerate((200, status)):
        exchange = state.exchanges.add(
            id=f"x{number}",
            method="POST",
            url="https://model.test/openai/v1/chat/completions",
            request_body=json.dumps({"model": "gpt", "messages": [], "odd": number}).encode(),
            status=code,
            framing="body",
            direction="out",
            started_ns=1_000_000_000 + number * 100_000_000,
            ended_ns=1_050_000_000 + number * 100_000_000,
        )
        exchange.request_headers.add(key="Authorization", value="Bearer recorded-key")
        answer = (
            {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]} if code == 200 else {"error": "no"}
        )
        exchange.chunks.add(data=json.dumps(answer).encode())
    state.failures.add(
        kind="exception", exception_type="openai.InternalServerError", message="no", time_ns=1_200_000_000
    )
    return state


class Twice:
    """A model that answers the first request and then as told."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[tuple[str, bytes, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, await request.read(), request.headers.get("Authorization", "")))
        if len(self.asked) == 2 and self.status != 200:
            return web.json_response(refusal("down"), status=self.status)
        return web.json_response({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})


@pytest.mark.parametrize(("status", "verdict"), [(503, "reproduced"), (200, "not-reproduced"), (401, "inconclusive")])
def test_requests_of_a_program_go_to_the_endpoint_word_for_word(replay, monkeypatch, status, verdict):
    monkeypatch.setenv("OPENAI_API_KEY", "own-key")
    state, model = recorded_program(), Twice(status)
    with serving(model.answer) as url:
        report = replay(f"{url}/base", state)
    assert report["verdict"] == verdict
    assert [(path, body) for path, body, _ in model.asked] == [
        ("/base/chat/completions", exchange.request_body) for exchange in state.exchanges
    ]
    assert {key for _, _, key in model.asked} == {"Bearer own-key"}, "never the recorded one"
    assert report["requests"][0]["text"]["as_recorded"]
    assert report["expected_signature"]["location"]["request_id"] == "x1"
    assert "openai.InternalServerError" in findings(report, "looked-for")[0]["message"]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (recorded_program(status=200), "not-visible-from-outside"),
        (recorded_program(level="shape"), "program-without-text"),
    ],
)
def test_a_program_whose_failure_is_not_at_its_model_is_said_to_be(replay, state, reason):
    with scripted_server({"/v1/chat/completions": FULL}) as server:
        report = replay(server.url(""), state)
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", reason)
    assert server.requests == []
