"""What is sent to an endpoint: to whom, when, and without what it refuses."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web

from dumps.tensors import le32
from tests.replay.targets.endpoint.endpoints import FULL, PATH, refusal, serving, streamed, text, usage
from tests.reports import findings
from tests.scripted_server import scripted_server
from tests.small_dump import small_state


def bodies(server) -> list[dict[str, Any]]:
    return [json.loads(body) for method, _, body in server.requests if method == "POST"]


def test_another_name_for_the_model_is_sent(replay):
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""), model="theirs")
    assert {body["model"] for body in bodies(server)} == {"theirs"}
    assert report["endpoint"]["model"] == "theirs"


class Choosy:
    """An endpoint that refuses parameters, one at a time, in the words of several servers."""

    def __init__(self, *refused: str, ids: bool = True) -> None:
        self.refused, self.ids = refused, ids
        self.accepted: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        for at, name in enumerate(self.refused):
            if name in body:
                named = refusal("unsupported", name) if at % 2 else refusal(f"Unknown field `{name}`: drop it")
                return web.json_response(named, status=400 + 22 * (at % 2))
        if not self.ids and not isinstance(body["prompt"], str):
            return web.json_response({"detail": [{"loc": ["body", "prompt"], "msg": "not a string"}]}, status=422)
        self.accepted.append(body)
        return web.json_response(
            {"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": body["max_tokens"]}}
        )


def test_parameters_that_a_server_refuses_are_left_out_one_by_one_and_told(replay):
    endpoint = Choosy("stream_options", "seed", "presence_penalty")
    with serving(endpoint.answer) as url:
        report = replay(url, repeat=2)
    assert report["verdict"] == "not-reproduced"
    assert report["endpoint"]["dropped_parameters"] == ["presence_penalty", "seed", "stream_options"]
    assert {one["parameter"] for one in findings(report, "parameter-dropped")} == set(endpoint.refused)
    assert all(not set(endpoint.refused) & set(body) for body in endpoint.accepted)
    assert all(body["temperature"] == 0 and body["prompt"] in ([1, 2, 3], [4, 4]) for body in endpoint.accepted)


@pytest.mark.parametrize("name", ["max_tokens", "model", "prompt"])
def test_what_makes_the_request_is_never_left_out(replay, name):
    with serving(Choosy(name).answer) as url:
        report = replay(url)
    assert report["reason_code"] == "endpoint-refused"


def test_a_server_without_token_ids_gets_the_text(replay):
    state = small_state()
    state.manifest.record_level = "full"
    for request in state.requests:
        request.prompt_text, request.output_text = f"prompt of {request.id}", "x"
    endpoint = Choosy(ids=False)
    with serving(endpoint.answer) as url:
        report = replay(url, state)
    assert sorted(body["prompt"] for body in endpoint.accepted) == ["prompt of req-a", "prompt of req-b"]
    assert report["endpoint"]["prompts"] == "text"
    assert findings(report, "prompts-as-text")
    assert all(one["text"]["as_recorded"] for one in report["requests"])


def test_requests_come_at_their_recorded_times_and_leave_with_their_clients(replay):
    state = small_state()
    first, second = state.requests
    first.arrival_ns, second.arrival_ns = 1_000_000_000, 1_400_000_000
    second.finish_reason, second.finish_cause = "abort", "client-gone"
    state.steps[2].start_ns = 1_700_000_000
    del state.failures[:]
    state.failures.add(kind="exception", request=0, step=2, time_ns=3_000_000_000)
    came: dict[int, float] = {}
    left: dict[int, float] = {}

    async def hang(request: web.Request) -> web.StreamResponse:
        prompt = (await request.json())["prompt"]
        came[len(prompt)] = time.monotonic()
        try:
            await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            left[len(prompt)] = time.monotonic()
            raise
        return web.json_response({"choices": [{"text": "x", "finish_reason": "stop"}]})

    with serving(hang) as url:
        report = replay(url, state)
    assert 0.35 < came[2] - came[3] < 0.8
    assert list(left) == [2]
    assert 0.2 < left[2] - came[2] < 0.7
    assert [one["status"] for one in report["requests"]] == ["answered", "aborted"]
    assert report["verdict"] == "not-reproduced"


def test_choices_come_back_to_their_records(replay):
    state = small_state()
    for sample, request in enumerate(state.requests):
        request.id, request.sample_index = f"cmpl-7-{sample}", sample
        request.prompt_token_ids, request.num_prompt_tokens = le32([4, 4]), 2
    state.steps[0].scheduled[0].num_tokens = 2
    one, two = [text("x", index=0)] * 3 + [text("x", "length", 0)], [text("y", "length", 1)]
    with scripted_server({PATH: streamed(*one, *two, usage(5))}) as server:
        report = replay(server.url(""), state)
    assert [body["n"] for body in bodies(server)] == [2]
    assert [(r["id"], r["status"], r["output_len"]) for r in report["requests"]] == [
        ("cmpl-7-0", "answered", 4),
        ("cmpl-7-1", "cut", 1),
    ]
    assert report["signature"]["location"]["request_id"] == "cmpl-7-1"


def test_the_key_is_sent_and_stands_in_no_report(replay, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-12345")
    seen = []

    async def echo(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.json_response(refusal(f"bad key {request.headers['Authorization']}"), status=401)

    with serving(echo) as url:
        report = replay(url, api_key_env="MY_KEY")
    assert set(seen) == {"Bearer sk-12345"}
    assert "sk-12345" not in json.dumps(report)
    assert report["endpoint"]["api_key"] == "MY_KEY"
    assert "--api-key-env" in findings(report, "endpoint-said")[0]["remedy"]


def test_nothing_but_the_url_is_contacted(replay, monkeypatch):
    """Neither where a redirect leads, nor a proxy that the environment names."""
    with scripted_server({PATH: FULL}) as elsewhere:
        monkeypatch.setenv("HTTP_PROXY", elsewhere.url(""))
        monkeypatch.setenv("http_proxy", elsewhere.url(""))
        monkeypatch.delenv("NO_PROXY", raising=False)
        location = elsewhere.url(PATH).encode()
        moved = [b"HTTP/1.1 307 Moved\r\nlocation: " + location + b"\r\ncontent-length: 0\r\n\r\n"]
        with scripted_server({PATH: moved}) as server:
            report = replay(server.url(""))
    assert elsewhere.requests == []
    assert report["reason_code"] == "endpoint-refused"
    assert f"localhost:{elsewhere.port}" in findings(report, "endpoint-said")[0]["message"]


def test_a_proxy_that_was_named_is_used(replay):
    with scripted_server({"http://endpoint.test/v1/completions": FULL}) as proxy:
        report = replay("http://endpoint.test", proxy=proxy.url(""))
    assert report["verdict"] == "not-reproduced"
    assert len(proxy.requests) == 2
