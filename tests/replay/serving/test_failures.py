"""Each kind of failure on a real server: what the client gets, what the dump holds, and that serving goes on."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import openai
import pytest

from dumps.record.recover import recover
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.tensors import from_le32
from dumps.validate import validate
from replay.openai_wire import EventReader
from tests.servers import ServerProcess, running_server
from tests.tiny import make_tiny_model, tiny_tokenizer

DUMP_ID = "x-pplx-dump-id"
TOKENIZER = tiny_tokenizer()


def prompt(n: int) -> dict[str, Any]:
    """A request that goes on until something ends it; the tiny model draws its end of sequence sooner or later."""
    body = {"ignore_eos": True}
    return {"model": "tiny", "prompt": f"request {n}", "seed": n, "max_tokens": 200, "extra_body": body}


def async_client(server: ServerProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def at_once(server: ServerProcess, *parameters: dict[str, Any]) -> list[Any]:
    """Answers with headers, or errors, of requests sent together."""

    async def run() -> list[Any]:
        async with async_client(server) as client:
            create = client.completions.with_raw_response.create
            return await asyncio.gather(*(create(**one) for one in parameters), return_exceptions=True)

    return asyncio.run(run())


def state_of(path: Path) -> pb.RuntimeState:
    """A dump's content, after every seal and every invariant was checked."""
    with open_dump(path) as dump:
        dump.verify()
        assert [finding for finding in validate(dump.state) if finding.severity == "error"] == []
        return dump.state


def dump_named(server: ServerProcess, dump_id: str) -> pb.RuntimeState:
    return state_of(server.dumps / f"{dump_id}.pplx")


def metrics_of(server: ServerProcess) -> str:
    return httpx.get(server.url + "/metrics").text


def still_serves(server: ServerProcess) -> bool:
    [answer] = at_once(server, prompt(99) | {"max_tokens": 5})
    return answer.parse().usage.completion_tokens == 5 and httpx.get(server.url + "/healthz").status_code == 200


def test_silent_truncation(tiny_model, tmp_path):
    options = ("--kv-blocks", "14", "--on-kv-exhausted", "truncate", "--record", "tokens")
    with running_server(tiny_model, tmp_path, *options) as server:
        answers = at_once(server, *(prompt(n) for n in range(3)))
        cut = [answer for answer in answers if DUMP_ID in answer.headers]
        assert cut
        for answer in answers:
            parsed = answer.parse()
            assert parsed.choices[0].finish_reason == "length"
            assert (parsed.usage.completion_tokens < 200) == (answer in cut)
        state = dump_named(server, cut[-1].headers[DUMP_ID])
        failure = state.failures[-1]
        request = state.requests[failure.request]
        answer = next(a for a in cut if a.parse().id == request.id.rpartition("-")[0])
        parsed = answer.parse()
        assert (state.manifest.reason, failure.kind, failure.invariant) == (
            "silent-truncation",
            "silent-truncation",
            "kv-pool-exhausted",
        )
        assert failure.kv_cache_used_bytes == failure.max_kv_cache_bytes == state.kv.max_bytes
        assert failure.seq_len_exceeded_at == parsed.usage.total_tokens
        assert request.num_output_tokens == parsed.usage.completion_tokens
        assert TOKENIZER.decode(from_le32(request.output_token_ids)) == parsed.choices[0].text
        assert (state.engine.num_blocks, state.engine.on_kv_exhausted) == (14, "truncate")
        assert (state.active_model, state.model.architecture) == ("tiny", "LlamaForCausalLM")
        assert state.manifest.platform_fingerprint
        assert [thread for thread in state.threads if thread.name == "engine"]

        # The folder goes: no dump can be written any more, and answers still come.
        shutil.rmtree(server.dumps)
        answers = at_once(server, *(prompt(n) for n in range(3)))
        assert [answer.parse().choices[0].finish_reason for answer in answers] == ["length"] * 3
        assert any("dump not written" in line for line in server.log)
        assert still_serves(server)


def test_reaching_the_last_position_is_a_silent_truncation_too(tiny_model, tmp_path):
    with running_server(tiny_model, tmp_path, "--max-model-len", "40") as server:
        with httpx.stream(
            "POST",
            server.url + "/v1/completions",
            json={"model": "tiny", "prompt": "the", "max_tokens": 200, "ignore_eos": True, "stream": True},
        ) as answer:
            lines = list(answer.iter_lines())
        [comment] = [line for line in lines if line.startswith(":")]
        state = dump_named(server, comment.split()[-1])
        assert state.failures[-1].invariant == "max-model-len"
        assert state.failures[-1].seq_len_exceeded_at == 40
        assert lines[-2] == "data: [DONE]"
        assert state.manifest.record_level == "shape"
        assert not any(request.HasField("prompt_token_ids") for request in state.requests)

        # On demand, with nothing wrong.
        before = set(server.dump_files())
        server.send(signal.SIGUSR2)
        while not (new := set(server.dump_files()) - before) or not any("demand" in line for line in server.log):
            assert still_serves(server)
        assert state_of(new.pop()).manifest.reason == "demand"

        # Nothing in flight: no dump at the end, and no ring is left.
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        assert len(server.dump_files()) == len(before) + 1
        assert list(server.dumps.glob("*.ring")) == []


def test_exhaustion_that_raises(tiny_model, tmp_path):
    options = ("--kv-blocks", "14", "--on-kv-exhausted", "raise", "--record", "tokens")
    with running_server(tiny_model, tmp_path, *options) as server:
        errors = at_once(server, *(prompt(n) for n in range(3)))
        assert [type(error) for error in errors] == [openai.InternalServerError] * 3
        [dump_id] = {error.response.headers[DUMP_ID] for error in errors}
        assert errors[0].body["type"] == "server_error"
        state = dump_named(server, dump_id)
        failure = state.failures[-1]
        assert (state.manifest.reason, failure.kind) == ("exception", "exception")
        assert failure.exception_type == "replay.errors.KVCacheExhausted"
        assert failure.invariant == "kv-pool-exhausted"
        assert failure.max_kv_cache_bytes == state.kv.max_bytes
        assert state.exceptions[-1].type == "replay.errors.KVCacheExhausted"
        assert state.exceptions[-1].frames[0].function.endswith("_make_room")
        assert [step.completed for step in state.steps][-2:] == [True, False]
        assert state.steps[-1].exhausted[-1].outcome == "raise"
        assert [request.status for request in state.requests] == ["running"] * 3

        # It begins anew: the same again gives the same failure, in a dump that starts at step 0 again.
        assert still_serves(server)
        errors = at_once(server, *(prompt(n) for n in range(3)))
        second = dump_named(server, errors[0].response.headers[DUMP_ID])
        assert second.steps[0].index == 0
        assert len(second.requests) == 4
        assert len(second.failures) == 1
        assert len(list(server.dumps.glob("*.ring"))) == 1


def test_preemption_does_not_change_an_answer_and_a_hopeless_request_does_not_hang(client, tiny_model, tmp_path):
    expected = [client.completions.create(**prompt(n)).choices[0].text for n in range(3)]
    with running_server(tiny_model, tmp_path, "--kv-blocks", "14", "--on-kv-exhausted", "preempt") as server:
        answers = at_once(server, *(prompt(n) for n in range(3)))
        assert [answer.parse().choices[0].text for answer in answers] == expected
        metrics = metrics_of(server).splitlines()
        assert next(int(line.split()[1]) for line in metrics if line.startswith("pplx_preemptions_total ")) > 0
        assert server.dump_files() == []

        long = {"model": "tiny", "prompt": [9] * 225, "max_tokens": 5}
        [error] = at_once(server, long)
        assert (error.status_code, error.code, error.param) == (400, "kv_pool_too_small", "prompt")
        [error] = at_once(server, long | {"prompt": [9] * 223, "extra_body": {"ignore_eos": True}})
        assert error.status_code == 500
        state = dump_named(server, error.response.headers[DUMP_ID])
        assert state.failures[-1].kind == "stall"
        assert state.steps[-1].exhausted[-1].outcome == "preempt-self"
        assert still_serves(server)


def test_a_flipped_bit_ends_one_request_and_no_other(client, tiny_model, tmp_path):
    others = [prompt(n) | {"max_tokens": 40} for n in range(1, 4)]
    expected = [client.completions.create(**one).choices[0].text for one in others]
    quirk = "kv-bit-flip:request=0,layer=1,position=3,after_step=20"
    with running_server(tiny_model, tmp_path, "--quirk", quirk, "--record", "tokens") as server:

        async def run() -> tuple[openai.APIError, list[str]]:
            async with async_client(server) as one:
                victim = await one.completions.create(**prompt(0), stream=True)
                await anext(aiter(victim))
                pending = [asyncio.create_task(one.completions.create(**other)) for other in others]
                with pytest.raises(openai.APIError) as error:
                    async for _ in victim:
                        pass
                return error.value, [(await task).choices[0].text for task in pending]

        error, texts = asyncio.run(run())
        assert texts == expected
        assert error.code == "non-finite"
        [path] = server.dump_files()
        state = state_of(path)
        failure = state.failures[-1]
        assert (state.manifest.reason, failure.kind) == ("non-finite", "non-finite")
        place = failure.non_finite
        assert (place.where, place.layer, place.tensor, place.position) == ("kv-cache", 1, "key", 3)
        assert (state.quirks[0].name, state.quirks[0].detail) == tuple(quirk.split(":"))
        assert from_le32(state.kv.contents_blocks)[0] == place.block
        with open_dump(path) as dump:
            contents = dump.tensor("kv-contents")
        assert contents.shape[1:] == (2, 2, 16, 2, 16)
        assert not np.isfinite(contents[0, 1, 0, place.slot]).all()
        assert state.requests[failure.request].finish_cause == "non-finite"
        assert still_serves(server)


def test_a_request_that_takes_too_long(tiny_model, tmp_path):
    with running_server(tiny_model, tmp_path, "--request-timeout", "0.05", "--record", "tokens") as server:
        [error] = at_once(server, prompt(0))
        assert (error.status_code, error.code) == (504, "timeout")
        state = dump_named(server, error.response.headers[DUMP_ID])
        assert (state.manifest.reason, state.failures[-1].kind) == ("timeout", "timeout")
        request = state.requests[state.failures[-1].request]
        assert request.status == "running"
        assert [len(from_le32(table.blocks)) > 0 for table in state.kv.tables] == [True]
        while "pplx_kv_blocks_used 0" not in metrics_of(server):
            pass


def test_sigterm_with_requests_in_flight(tiny_model, tmp_path):
    with running_server(tiny_model, tmp_path, "--record", "full", debug=2) as server:

        async def run() -> list[Any]:
            async with async_client(server) as client:
                stream = await client.completions.create(**prompt(0), stream=True)
                await anext(aiter(stream))
                pending = asyncio.create_task(client.completions.create(**prompt(1)))
                while "pplx_requests_running 2" not in await asyncio.to_thread(metrics_of, server):
                    pass
                server.send(signal.SIGTERM)
                whole = (await asyncio.gather(pending, return_exceptions=True))[0]
                with pytest.raises(openai.APIError) as error:
                    async for _ in stream:
                        pass
                return [whole, error.value]

        whole, streamed = asyncio.run(run())
        assert (whole.status_code, streamed.code) == (503, "engine-error")
        assert server.wait() == 0
        [path] = server.dump_files()
        state = state_of(path)
        assert state.manifest.reason == "signal"
        assert len(state.scheduler.running) == 2
        # PPLX_DEBUG=2 records what every token was drawn from.
        first = state.requests[0]
        assert len(first.output_digests) == 8 * first.num_output_tokens > 0
        assert (first.prompt_text, first.output_text) == (
            "request 0",
            TOKENIZER.decode(from_le32(first.output_token_ids)),
        )


async def begin_stream(
    http: aiohttp.ClientSession, server: ServerProcess, n: int
) -> tuple[aiohttp.ClientResponse, str]:
    """An answer that goes on, and its first 20 characters or so."""
    body = {name: value for name, value in prompt(n).items() if name != "extra_body"}
    answer = await http.post(server.url + "/v1/completions", json=body | {"stream": True, "ignore_eos": True})
    reader, text = EventReader(), ""
    async for data in answer.content.iter_any():
        text += "".join(event["choices"][0]["text"] for event in reader.feed(data))
        if len(text) > 20:
            break
    return answer, text


def test_kill_under_load_and_what_the_next_start_makes_of_it(tiny_model, tmp_path):
    with running_server(tiny_model, tmp_path, "--record", "tokens", "--ring-size", "16") as server:
        at_once(server, *(prompt(n) for n in range(8)))

        async def run() -> list[str]:
            async with aiohttp.ClientSession() as http:
                begun = await asyncio.gather(*(begin_stream(http, server, n) for n in range(4)))
                server.kill()
                for answer, _ in begun:
                    answer.close()
                return [text for _, text in begun]

        texts = asyncio.run(run())
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        dump = recover(server.ring, elsewhere)
    state = state_of(dump)
    assert (state.manifest.reason, state.failures[-1].kind) == ("process-death", "process-death")
    assert state.steps[0].index > 0, "the ring has not wrapped"
    live = [state.requests[index] for index in state.scheduler.running]
    said = {from_le32(request.prompt_token_ids)[-1]: from_le32(request.output_token_ids) for request in live}
    for n, text in enumerate(texts):
        assert TOKENIZER.decode(said[TOKENIZER.encode(str(n)).ids[0]]).startswith(text.rstrip("�"))
    with running_server(tiny_model, tmp_path) as server:
        [again] = server.dump_files()
        assert again.name == dump.name
        assert state_of(again).requests == state.requests
        assert list(server.dumps.glob("*.ring")) == [server.ring]


def test_a_token_that_the_model_has_no_row_for_is_refused_and_harms_nobody(tmp_path):
    """Tokenizers are saved with more tokens than the model was ever given."""
    folder = make_tiny_model(tmp_path / "tiny", vocab_size=300)
    text = "recommend the chair"
    assert max(TOKENIZER.encode(text).ids) >= 300
    with running_server(folder, tmp_path / "dumps") as server:
        good, bad = at_once(server, prompt(1) | {"prompt": [5, 6]}, prompt(2) | {"prompt": text})
        assert isinstance(bad, openai.BadRequestError)
        assert good.http_response.status_code == 200
        assert all(state_of(path).failures[-1].kind == "silent-truncation" for path in server.dump_files())
