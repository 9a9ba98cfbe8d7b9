"""Replays against an endpoint that plays a script: what it says, what is sent to it, and what the report makes of it.

The small dump holds two requests of four tokens each and a silent truncation of the second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from aiohttp import web

from dumps.schema import state_pb2 as pb
from dumps.tensors import le32
from replay.cli.endpoint_view import endpoint_meaning, endpoint_rows
from replay.isolate.endpoint import run_endpoint
from tests.replay.targets.endpoint.endpoints import PATH, error, refusal, serving, streamed, text, usage
from tests.reports import findings
from tests.scripted_server import scripted_server
from tests.small_dump import small_state

FULL = streamed(*[text("x")] * 3, text("x", "length"), usage(4))
CUT = streamed(text("x"), text("x", "length"), usage(2))


def failing_with(kind: str, **fields: object) -> pb.RuntimeState:
    """The small state with another failure, that of its first request after half a second."""
    state = small_state()
    del state.failures[:]
    state.failures.add(kind=kind, request=0, step=2, time_ns=500_000_000, **fields)
    return state


def bodies(server) -> list[dict[str, Any]]:
    return [json.loads(body) for method, _, body in server.requests if method == "POST"]


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


def test_a_server_that_is_down_is_said_to_be(replay):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    report = replay(f"http://127.0.0.1:{port}", repeat=5)
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "endpoint-unreachable")
    assert report["repeat"] == {"n": 1, "reproduced": 0}, "asking a dead server five times tells no more"
    assert str(port) in findings(report, "endpoint-said")[0]["message"]


def test_a_model_that_is_not_there_is_named_with_those_that_are(replay):
    models = json.dumps({"data": [{"id": "other-model"}]}).encode()
    listing = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(models), models]
    missing = error(404, refusal("The model `smollm2-135m` does not exist.", code="model_not_found"))
    with scripted_server({PATH: missing, "/v1/models": listing}) as server:
        report = replay(server.url(""))
    assert report["reason_code"] == "endpoint-without-model"
    assert "other-model" in findings(report, "endpoint-said")[0]["remedy"]


def test_another_name_for_the_model_is_sent(replay):
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""), model="theirs")
    assert {body["model"] for body in bodies(server)} == {"theirs"}
    assert report["endpoint"]["model"] == "theirs"


def test_a_path_that_is_not_there_is_not_taken_for_a_model(replay):
    with scripted_server({}) as server:
        report = replay(server.url(""))
    assert report["reason_code"] == "endpoint-refused"
    assert "check the URL" in findings(report, "endpoint-said")[0]["remedy"]


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


def test_the_budget_ends_a_server_that_never_answers(write):
    with scripted_server({PATH: ["hang"]}) as server:
        job = {"dump": str(write(small_state())), "target": f"endpoint={server.url('')}", "timeout_s": 0.3}
        result = run_endpoint(job)
    assert result.report is None
    assert result.error is not None
    assert (result.error.kind, result.error.exit_code) == ("BudgetSpent", 21)
    assert "2 requests" in result.error.message


def test_tries_that_were_made_count_when_the_budget_is_spent(replay):
    first = itertools.count()

    async def answer(request: web.Request) -> web.StreamResponse:
        if next(first) >= 2:
            await asyncio.sleep(30)
        return web.json_response(
            {"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}
        )

    with serving(answer) as url:
        report = replay(url, repeat=3, timeout_s=1.5)
    assert report["verdict"] == "reproduced"
    assert report["repeat"] == {"n": 1, "reproduced": 1}
    assert "1 of 3" in findings(report, "budget-spent")[0]["message"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("contamination", "not-visible-from-outside"), ("process-death", "process-death"), ("novel", "kind-unsupported")],
)
def test_what_cannot_be_seen_from_outside_is_not_even_sent(replay, kind, reason):
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""), failing_with(kind))
    assert (report["verdict"], report["reason_code"], report["mode"]) == ("inconclusive", reason, "none")
    assert server.requests == []


def test_a_record_without_prompts_says_what_would_have_sufficed(replay):
    state = small_state()
    for request in state.requests:
        for field in ("prompt_token_ids", "output_token_ids", "output_digests"):
            request.ClearField(field)
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""), state)
    assert report["reason_code"] == "tokens-absent"
    assert "--record tokens" in findings(report, "tokens-absent")[0]["remedy"]
    assert server.requests == []


def test_what_only_the_recorded_engine_could_be_told_is_said_to_be_left_out(replay):
    state = small_state()
    state.requests[0].flags.early_exit = 0.8
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""), state)
    assert [one["message"] for one in findings(report, "not-sent")] == [
        "early exit, which 1 recorded requests asked for, cannot be sent; answers may differ"
    ]


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


def test_where_a_text_first_differs_is_told(replay):
    state = small_state()
    for request in state.requests:
        request.output_text = "same to here, then not"
    with scripted_server({PATH: streamed(text("same to here, "), text("but", "stop"), usage(4))}) as server:
        report = replay(server.url(""), state)
    assert report["requests"][0]["text"] == {
        "as_recorded": False,
        "compared_chars": 17,
        "at": 14,
        "recorded": "same to here, then not",
        "endpoint": "same to here, but",
    }


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


def test_a_dump_opens_in_a_process_without_network(replay):
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""))
    assert report["environment"]["isolation"]["grade"].startswith("audit-hook")
    assert report["environment"]["isolation"]["refused"] == []
    assert server.url("") in report["environment"]["network"]


def test_a_damaged_dump_is_a_damaged_dump(tmp_path):
    path = tmp_path / "bad.pplx"
    path.write_bytes(b"PPLX nonsense")
    result = run_endpoint({"dump": str(path), "target": "endpoint=http://127.0.0.1:9"})
    assert result.error is not None
    assert result.error.exit_code == 4


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


def test_ctrl_c_closes_the_connections(write):
    """A replay that waits for an endpoint which never answers, interrupted as from a terminal."""
    code = "import sys; from replay.isolate.endpoint import run_endpoint; run_endpoint(eval(sys.argv[1]))"
    with scripted_server({PATH: ["hang"]}) as server:
        job = {"dump": str(write(small_state())), "target": f"endpoint={server.url('')}"}
        process = subprocess.Popen([sys.executable, "-c", code, repr(job)], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while len(server.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert len(server.requests) == 2
    assert process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")


def test_people_read_what_was_sent_and_what_came_back(replay):
    with scripted_server({PATH: CUT}) as server:
        report = replay(server.url(""), repeat=2)
        down = replay(server.url(""), failing_with("contamination"))
    rows = dict(endpoint_rows(report))
    assert rows["endpoint"] == f"{server.url('/v1')}, model smollm2-135m"
    assert rows["sent"] == "2 requests over 0 s as recorded, prompts token ids"
    assert (rows["requests"], rows["tries"]) == ("2: 2 cut", "reproduced 2 of 2")
    assert endpoint_meaning(report) == "a failure of the same kind came back, 2 of 2 times"
    assert dict(endpoint_rows(down)) == {"replayed": "nothing was sent"}
