"""A real server on the tiny model: answers, streams, errors. The client is the official one where it can be."""

from __future__ import annotations

import asyncio
import io
import urllib.request

import aiohttp
import openai
import pytest

from tests.servers import ServerProcess
from tests.tiny import tiny_tokenizer

HELLO = [{"role": "user", "content": "hello"}]
TOKENIZER = tiny_tokenizer()


def whole(client: openai.OpenAI, **parameters) -> str:
    return str(client.completions.create(model="tiny", **parameters).choices[0].text)


def pieces(client: openai.OpenAI, **parameters) -> list[str]:
    """The text deltas of a stream of one choice."""
    chunks = client.completions.create(model="tiny", stream=True, **parameters)
    return [chunk.choices[0].text for chunk in chunks if chunk.choices]


def metric(server: ServerProcess, name: str) -> float:
    with urllib.request.urlopen(server.url + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))


def test_chat_whole(client):
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=12, seed=3)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert answer.usage.prompt_tokens == len(TOKENIZER.encode(rendered).ids)
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_stream_says_the_same_as_the_whole_answer(client, temperature):
    common = {"messages": HELLO, "max_tokens": 60, "seed": 3, "temperature": temperature, "model": "tiny"}
    answer = client.chat.completions.create(**common)
    chunks = list(client.chat.completions.create(**common, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == answer.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == answer.choices[0].finish_reason
    assert (chunks[-1].choices, chunks[-1].usage) == ([], answer.usage)
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_prompt_as_text_and_as_ids_is_the_same(client):
    common = {"max_tokens": 20, "temperature": 0}
    texts = ["the cat", "on the mat"]
    ids = [TOKENIZER.encode(text).ids for text in texts]
    alone = [whole(client, prompt=text, **common) for text in texts]
    assert [whole(client, prompt=tokens, **common) for tokens in ids] == alone
    for batch in (texts, ids):
        answer = client.completions.create(model="tiny", prompt=batch, **common)
        assert [choice.text for choice in answer.choices] == alone
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.usage.prompt_tokens == sum(map(len, ids))
        assert answer.usage.completion_tokens == 40


@pytest.mark.parametrize("endpoint", ["chat", "text"])
def test_the_ids_of_an_answer_come_with_its_text_and_where_a_character_is_not_whole_before_it(client, endpoint):
    """A logit_bias makes the model write first halves of characters only, whose text waits for what follows."""
    half = TOKENIZER.token_to_id("Ã")
    common = {"model": "tiny", "max_tokens": 4, "logit_bias": {str(half): 100}}
    common |= {"extra_body": {"return_token_ids": True}}
    create = client.chat.completions.create if endpoint == "chat" else client.completions.create
    asked = {"messages": HELLO} if endpoint == "chat" else {"prompt": "hello"}
    answer = create(**asked, **common).choices[0]
    said = answer.message.content if endpoint == "chat" else answer.text
    assert answer.token_ids == [half] * 4
    assert TOKENIZER.decode(answer.token_ids) == said
    chunks = [chunk.choices[0] for chunk in create(**asked, **common, stream=True)]
    told = [chunk for chunk in chunks if getattr(chunk, "token_ids", None)]
    assert [token for chunk in told for token in chunk.token_ids] == answer.token_ids
    texts = [(chunk.delta.content or "") if endpoint == "chat" else chunk.text for chunk in told]
    assert "".join(texts) == said
    assert texts[0] == ""


def test_choices_differ_and_come_back_with_the_seed(client):
    common = {"model": "tiny", "prompt": "a", "max_tokens": 16, "seed": 9, "n": 3}
    first = [choice.text for choice in client.completions.create(**common).choices]
    assert len(set(first)) == 3
    streamed = ["", "", ""]
    for chunk in client.completions.create(**common, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == first


def test_without_a_seed_answers_differ(client):
    assert len({whole(client, prompt="a", max_tokens=16) for _ in range(3)}) > 1


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stop_string_cuts_exactly(client, length):
    common = {"prompt": "the", "max_tokens": 80, "seed": 5}
    text = whole(client, **common)
    start = next(i for i in range(10, len(text)) if "�" not in text[i : i + length] and len(text) >= i + length)
    stop = text[start : start + length]
    answer = client.completions.create(model="tiny", stop=[stop, "never in there"], **common)
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens < 80
    assert "".join(pieces(client, stop=stop, **common)) == answer.choices[0].text


def test_a_stop_token_ends_the_answer_without_its_text(client):
    common = {"prompt": "the", "max_tokens": 20, "temperature": 0}
    found = pieces(client, **common)
    # A piece of one token: characters that were broken would show in it.
    at = next(i for i in range(3, 20) if len(TOKENIZER.encode(found[i]).ids) == 1 and found[i] not in found[:i])
    stop = TOKENIZER.encode(found[at]).ids
    answer = client.completions.create(model="tiny", **common, extra_body={"stop_token_ids": stop})
    assert answer.choices[0].text == "".join(found[:at])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > at


def test_ignore_eos_and_min_tokens(client):
    common = {"model": "tiny", "prompt": "x", "max_tokens": 8, "temperature": 0, "logit_bias": {"2": 100}}
    assert client.completions.create(**common).usage.completion_tokens == 1
    assert client.completions.create(**common).choices[0].finish_reason == "stop"
    assert client.completions.create(**common, extra_body={"ignore_eos": True}).usage.completion_tokens == 8
    assert client.completions.create(**common, extra_body={"min_tokens": 5}).usage.completion_tokens == 6


def test_no_delta_holds_half_a_character(client):
    """The bytes of one character, forced one after the other by the prompt's own repetition, arrive together."""
    emoji = TOKENIZER.encode("🦜").ids
    bias = {str(token): 100 for token in emoji}
    common = {"prompt": "🦜🦜🦜🦜", "max_tokens": 40, "seed": 1, "logit_bias": bias, "temperature": 1}
    found = pieces(client, **common)
    joined = "".join(found)
    assert joined == whole(client, **common)
    ids = [token for token in TOKENIZER.encode(joined).ids if token in emoji]
    assert ids, "the bias did not work"
    for piece in found:
        piece.encode("utf-8")


def test_sixteen_at_once_answer_as_each_alone(client, healthy):
    parameters = [
        {"model": "tiny", "prompt": f"request {n} " + "ab" * (n * 3), "max_tokens": 24, "seed": n} for n in range(16)
    ]
    alone = [client.completions.create(**one).choices[0].text for one in parameters]

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=healthy.url + "/v1", api_key="none", max_retries=0) as client:

            async def streamed(one) -> str:
                text = ""
                async for chunk in await client.completions.create(**one, stream=True):
                    text += chunk.choices[0].text
                return text

            return await asyncio.gather(*(streamed(one) for one in parameters))

    assert asyncio.run(together()) == alone


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_an_unknown_model_is_a_404(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="other", prompt="a")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


def test_a_prompt_that_is_too_long_is_a_400(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", prompt=[5] * 256)
    assert error.value.code == "context_length_exceeded"
    assert "256" in error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", prompt="")
    assert error.value.code == "empty_prompt"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b'{"model": "tiny", "prompt": ' + b"[" * 100_000, 400, "invalid_json"),
        (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', 400, "invalid_json"),
        (b'{"model": "tiny", "prompt": "a", "logprobs": 5}', 400, "unsupported_parameter"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', 400, "invalid_value"),
        (b'{"model": "tiny", "prompt": "' + b"a" * (9 * 2**20) + b'"}', 413, "body_too_large"),
    ],
    ids=["cut", "deep", "nan", "unsupported", "surrogate", "large"],
)
async def test_error_bodies(healthy, body, status, code):
    async with (
        aiohttp.ClientSession() as http,
        http.post(healthy.url + "/v1/completions", data=io.BytesIO(body)) as answer,
    ):
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["type"]) == (status, code, "invalid_request_error")
        assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b'{"model": "tiny", "prompt": "a", "\\ud800": 1}', {}, "invalid_json"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "a", "\\udfff": 1}]}', {}, "invalid_json"),
        (b"not compressed", {"Content-Encoding": "gzip"}, "invalid_body"),
        (b"not compressed", {"Content-Encoding": "deflate"}, "invalid_body"),
        (b'{"model": "tiny", "prompt": "%s"}' % (b"a b " * 2**19), {}, "context_length_exceeded"),
    ],
)
async def test_bodies_that_cannot_be_read_are_the_clients_error(healthy, body, headers, code):
    path = "/v1/chat/completions" if b"messages" in body else "/v1/completions"
    async with (
        aiohttp.ClientSession() as http,
        http.post(healthy.url + path, data=io.BytesIO(body), headers=headers) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, code)


async def test_unknown_addresses_and_methods(healthy):
    async with aiohttp.ClientSession() as http:
        async with http.get(healthy.url + "/nothing") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_url")
        async with http.get(healthy.url + "/v1/completions") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize("stream", [False, True])
async def test_request_ids_are_echoed(healthy, stream):
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2, "stream": stream}
    async with aiohttp.ClientSession() as http:
        url = healthy.url + "/v1/completions"
        async with http.post(url, json=body, headers={"X-Request-Id": "abc-1"}) as answer:
            assert answer.headers["X-Request-Id"] == "abc-1"
        async with http.post(url, json=body, headers={"X-Request-Id": "with spaces in it"}) as answer:
            assert len(answer.headers["X-Request-Id"]) == 32


async def test_a_client_that_does_not_wait_for_its_answer_frees_its_blocks(healthy):
    body = {"model": "tiny", "prompt": "a", "max_tokens": 250, "ignore_eos": True, "n": 2}
    before = metric(healthy, "pplx_requests_finished_total")
    async with aiohttp.ClientSession() as http:
        pending = asyncio.create_task(http.post(healthy.url + "/v1/completions", json=body))
        while await asyncio.to_thread(metric, healthy, "pplx_requests_running") < 2:
            assert not pending.done()
        pending.cancel()
        while await asyncio.to_thread(metric, healthy, "pplx_requests_finished_total") < before + 2:
            pass
    assert metric(healthy, "pplx_kv_blocks_used") == 0


async def test_a_client_that_goes_away_in_mid_stream_frees_its_blocks(healthy):
    body = {"model": "tiny", "prompt": "a", "max_tokens": 200, "stream": True, "ignore_eos": True}
    before = metric(healthy, "pplx_requests_finished_total")
    async with aiohttp.ClientSession() as http:
        answers = [await http.post(healthy.url + "/v1/completions", json=body) for _ in range(3)]
        for answer in answers:
            await answer.content.readline()
            answer.close()
        while await asyncio.to_thread(metric, healthy, "pplx_requests_finished_total") < before + 3:
            pass
        async with http.get(healthy.url + "/metrics") as answer:
            text = await answer.text()
    assert 'pplx_requests_finished_total{cause="client-gone",reason="abort"}' in text
    assert metric(healthy, "pplx_kv_blocks_used") == 0


async def test_health_and_metrics(healthy):
    async with aiohttp.ClientSession() as http:
        async with http.get(healthy.url + "/healthz") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})
        async with http.get(healthy.url + "/metrics") as answer:
            assert answer.content_type == "text/plain"
            assert "pplx_kv_blocks_total 300" in (await answer.text()).splitlines()


def test_nothing_that_went_well_left_a_dump(client, healthy):
    whole(client, prompt="a", max_tokens=3)
    assert healthy.dump_files() == []
    assert [line for line in healthy.log if "ERROR" in line] == []
