"""Replayed inference in place of the recorded stream, and the official client on both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import httpx2
import openai
import pytest

from dumps.schema import state_pb2 as pb
from replay.openai_wire import DONE
from replay.runtime.network.model import asks_a_model, compare_answers, said
from tests.loopback import Loopback, Script, captured

Make = Callable[..., Any]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str | None, *, reason: str | None = None, number: int = 1) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": reason}
    document = {"id": f"c{number}", "object": "chat.completion.chunk", "created": number, "model": "m"}
    return b"data: " + json.dumps({**document, "choices": [choice]}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*texts: str, end: str = "keep") -> Script:
    events = [chunk(event(text)) for text in texts]
    if end == "keep":
        return Script([HEAD, *events, chunk(event(None, reason="stop") + DONE) + b"0\r\n\r\n"])
    return Script([HEAD, *events, chunk(event("never whole"))[:25]], "reset")


def answer(*texts: str, number: int = 7) -> pb.Exchange:
    exchange = pb.Exchange(status=200, framing="body", ended_ns=1)
    exchange.response_headers.add(key="Content-Type", value="text/event-stream")
    for data in (*(event(text, number=number) for text in texts), event(None, reason="stop", number=number) + DONE):
        exchange.chunks.add(data=data, size=len(data))
    return exchange


class Model:
    def __init__(self, given: pb.Exchange | None) -> None:
        self.given = given
        self.asked: list[pb.Exchange] = []

    def answer(self, exchange: pb.Exchange) -> pb.Exchange | None:
        self.asked.append(exchange)
        return self.given


BODY = {"messages": [{"role": "user", "content": "hi"}], "model": "m", "stream": True}


def ask_sync(url: str) -> tuple[list[str], str]:
    texts: list[str] = []
    with openai.OpenAI(base_url=url, api_key="sk-" + "a" * 30, max_retries=0) as client:
        try:
            for part in client.chat.completions.create(**BODY):  # type: ignore[call-overload]
                texts += [choice.delta.content for choice in part.choices if choice.delta.content]
        except (openai.APIError, httpx2.HTTPError) as error:
            return texts, f"{type(error).__name__}: {error}"
    return texts, ""


async def ask_async(url: str) -> tuple[list[str], str]:
    texts: list[str] = []
    async with openai.AsyncOpenAI(base_url=url, api_key="sk-" + "a" * 30, max_retries=0) as client:
        try:
            async for part in await client.chat.completions.create(**BODY):  # type: ignore[call-overload]
                texts += [choice.delta.content for choice in part.choices if choice.delta.content]
        except (openai.APIError, httpx2.HTTPError) as error:
            return texts, f"{type(error).__name__}: {error}"
    return texts, ""


def recorded(script: Script, *, live: bool = False) -> tuple[pb.Exchange, str, tuple[list[str], str] | None]:
    with Loopback(script) as server:
        body = json.dumps(BODY).encode()
        exchange = captured(f"{server.url}/v1/chat/completions", script=script, method="POST", body=body)
        return exchange, f"{server.url}/v1", ask_sync(f"{server.url}/v1") if live else None


@pytest.mark.parametrize("end", ["keep", "reset"])
def test_the_official_client_sees_the_recorded_stream(end: str, replay: Make) -> None:
    exchange, url, live = recorded(stream("one", "two", end=end), live=True)
    assert live is not None
    assert live[0] == ["one", "two"]
    assert bool(live[1]) == (end == "reset")
    assert replay(exchange).call(lambda: ask_sync(url)) == live
    texts, error = replay(exchange).run(lambda: ask_async(url))
    assert texts == live[0]
    assert bool(error) == (end == "reset")


@pytest.mark.parametrize("end", ["keep", "reset"])
def test_a_model_that_says_the_same_plays_as_recorded(end: str, replay: Make) -> None:
    """To the reset and the delays: its own chunks are cut in another way."""
    exchange, url, _ = recorded(stream("one", "two", end=end))
    model = Model(answer("on", "etw", "o", *(["..."] if end == "reset" else [])))
    world = replay(exchange, model=model)
    texts, error = world.call(lambda: ask_sync(url))
    assert (texts, bool(error)) == (["one", "two"], end == "reset")
    assert world.kinds() == []
    assert world.passed_s >= sum(one.delay_ns for one in exchange.chunks) / 1e9
    assert json.loads(model.asked[0].request_body)["messages"][0]["content"] == "hi"


def test_a_model_that_says_something_else_is_heard_and_told(replay: Make) -> None:
    exchange, url, _ = recorded(stream("one", "two"))
    world = replay(exchange, model=Model(answer("one", "too")))
    assert world.call(lambda: ask_sync(url)) == (["one", "too"], "")
    [finding] = world.network.findings()
    assert finding.kind == "model-answer"
    assert "choices[0].text: recorded (dump) 'onetwo', replayed inference 'onetoo'" in finding.message
    assert "--answers" not in finding.message


def test_an_answer_that_is_another_from_its_first_letter_on_may_be_that_of_other_weights(replay: Make) -> None:
    exchange, url, _ = recorded(stream("Severity: low."))
    world = replay(exchange, model=Model(answer("I am a large")))
    world.call(lambda: ask_sync(url))
    [finding] = world.network.findings()
    assert "--answers recorded" in finding.message


def test_without_an_answer_of_the_model_the_recorded_one_plays(replay: Make) -> None:
    exchange, url, _ = recorded(stream("one"))
    assert replay(exchange, model=Model(None)).call(lambda: ask_sync(url)) == (["one"], "")


def test_a_server_that_refused_is_not_asked_again_of_the_model(replay: Make) -> None:
    script = Script([b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}"])
    exchange, url, live = recorded(script, live=True)
    model = Model(answer("one"))
    assert replay(exchange, model=model).call(lambda: ask_sync(url)) == live
    assert model.asked == []


def test_a_body_is_framed_by_its_length_or_in_chunks(replay: Make) -> None:
    whole = pb.Exchange(id="x1", method="GET", url="http://h/", framing="body", status=200, ended_ns=1)
    whole.response_headers.add(key="Content-Encoding", value="gzip")
    whole.chunks.add(data=b"plain", size=5, delay_ns=3 * 10**9)
    pieces = pb.Exchange()
    pieces.CopyFrom(whole)
    pieces.chunks.add(data=b" more", size=5, delay_ns=2 * 10**9)
    cut = pb.Exchange()
    cut.CopyFrom(pieces)
    cut.error = "closed"

    async def read() -> tuple[Sequence[bytes], str]:
        async with aiohttp.ClientSession() as session, session.get("http://h/") as response:
            assert "Content-Encoding" not in response.headers
            seen = []
            try:
                async for piece in response.content.iter_any():
                    seen.append(piece)
            except aiohttp.ClientPayloadError as error:
                return seen, type(error).__name__
            return seen, ""

    world = replay(whole)
    assert world.run(read) == ([b"plain"], "")
    assert world.passed_s == pytest.approx(3, abs=1e-3)  # each look at the clock takes a little
    world = replay(pieces)
    assert world.run(read) == ([b"plain", b" more"], "")
    assert world.passed_s == pytest.approx(5, abs=1e-3)
    assert replay(cut).run(read) == ([b"plain", b" more"], "ClientPayloadError")


@pytest.mark.parametrize(
    ("url", "method", "expected"),
    [
        ("http://h/v1/chat/completions", "POST", True),
        ("http://h/any/completions/?x=1", "POST", True),
        ("https://h/v1/responses", "POST", True),
        ("http://h/v1/chat/completions", "GET", False),
        ("http://h/v1/embeddings", "POST", False),
        ("http://[bad", "POST", False),
    ],
)
def test_a_model_is_known_by_its_path(url: str, method: str, expected: bool) -> None:
    assert asks_a_model(pb.Exchange(method=method, url=url)) is expected


def test_what_is_said_is_found_in_each_shape() -> None:
    chat = {"choices": [{"message": {"content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]}
    assert said(json.dumps(chat).encode()) == {
        "choices[0].text": "a",
        "choices[0].tool_calls[0].name": "f",
        "choices[0].tool_calls[0].arguments": "{}",
    }
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "delta": text} for text in ("a", "b")]
    sse = b"".join(b"event: x\ndata: " + json.dumps(delta).encode() + b"\n\n" for delta in deltas)
    assert said(sse) == {"output[0].text": "ab"}
    assert said(json.dumps({"output": [{"content": [{"text": "ab"}]}]}).encode()) == {"output[0].text": "ab"}
    assert said(b"<html>") == {"body": "<html>"}
    assert said(b"") == {}


def test_token_ids_are_what_a_model_says_however_the_answer_was_cut() -> None:
    def of(*ids: list[int]) -> pb.Exchange:
        choices = [{"index": 0, "text": "", "token_ids": one} for one in ids]
        chunks = [pb.Chunk(data=b"data: " + json.dumps({"choices": [one]}).encode() + b"\n\n") for one in choices]
        return pb.Exchange(status=200, framing="body", ended_ns=1, chunks=chunks)

    assert compare_answers(of([1, 2], [3]), of([1], [2, 3])) is None
    difference = compare_answers(of([1, 2]), of([12]))
    assert difference is not None
    assert difference.field == "choices[0].token_ids"


def test_ids_times_and_cuts_are_not_compared_and_reasons_are() -> None:
    assert compare_answers(answer("ab", "c"), answer("a", "bc", number=9)) is None
    other = answer("abc")
    other.chunks[-1].data = event(None, reason="length") + DONE
    difference = compare_answers(answer("abc"), other)
    assert difference is not None
    assert (difference.field, difference.recorded, difference.replayed) == (
        "choices[0].finish_reason",
        "stop",
        "length",
    )
