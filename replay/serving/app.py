"""The HTTP side of the reference server: routes, limits, errors, and answers whole or streamed."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from dumps.text import printable
from replay import openai_wire as wire
from replay.engine.defects import Defects
from replay.engine.detokenize import Vocabulary
from replay.engine.schedule import EngineConfig
from replay.openai_wire import ApiError, invalid
from replay.serving.engine_thread import EngineThread
from replay.serving.fields import parse_object
from replay.serving.generation import EngineStuck, Generation, GenerationFailed
from replay.serving.internal_flags import INTERNAL_FLAGS, parse_flags
from replay.serving.metrics import CONTENT_TYPE, Metrics
from replay.serving.prompts import PromptEncoder
from replay.serving.requests import parse_call

log = logging.getLogger("pplx.server")

MAX_BODY_BYTES = 8 * 2**20
REQUEST_ID = "X-Request-Id"
DUMP_ID = "X-PPLX-Dump-Id"
_REQUEST_ID_SHAPE = re.compile(r"[\x21-\x7e]{1,128}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True, kw_only=True, eq=False)
class Serving:
    """What the routes need. ``capacity`` bounds the choices in flight; the recorder has a slot for each. ``defects``
    are checks of requests that are left out."""

    engine: EngineThread
    encoder: PromptEncoder
    vocabulary: Vocabulary
    metrics: Metrics
    config: EngineConfig
    vocab_size: int
    defects: Defects
    model_names: tuple[str, ...]
    fingerprint: str
    created: int
    request_timeout_s: float
    capacity: int
    in_flight: int = 0
    closing: bool = False


SERVING: web.AppKey[Serving] = web.AppKey("serving", Serving)


def make_app(serving: Serving) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_request_ids, _errors])
    app[SERVING] = serving
    app.router.add_post(wire.CHAT, _generate)
    app.router.add_post(wire.COMPLETIONS, _generate)
    app.router.add_get(wire.MODELS, _models)
    app.router.add_get(wire.MODELS + "/{name:.+}", _model)
    app.router.add_get("/healthz", _health)
    app.router.add_get("/metrics", _metrics)
    return app


@web.middleware
async def _request_ids(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Echo the client's request id, or make one. Streams set theirs before they are prepared."""
    given = request.headers.get(REQUEST_ID, "")
    request["id"] = given if _REQUEST_ID_SHAPE.fullmatch(given) else uuid.uuid4().hex
    response = await handler(request)
    log.info("%s %s %d %s", request.method, printable(request.path), response.status, request["id"])
    if not response.prepared:
        response.headers[REQUEST_ID] = request["id"]
    return response


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error as an OpenAI error body."""
    try:
        return await handler(request)
    except ApiError as error:
        return _error_response(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        answer = _error_response(_of_http(error, request))
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        log.exception("a handler failed")
        return _error_response(ApiError(500, "The server failed to handle this request.", code="internal_error"))


def _of_http(error: web.HTTPException, request: web.Request) -> ApiError:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return ApiError(413, f"The request body is larger than {MAX_BODY_BYTES} bytes.", code="body_too_large")
    if error.status in (404, 405):
        return ApiError(error.status, f"Unknown request URL: {request.method} {request.path}", code="unknown_url")
    return ApiError(error.status, error.reason)


def _error_response(error: ApiError) -> web.Response:
    response = web.Response(status=error.status, body=wire.encode(error.body), content_type="application/json")
    if isinstance(error, GenerationFailed):
        # The official client repeats a request after a 500 by itself. Ours would fail again, and dump again.
        response.headers["x-should-retry"] = "false"
        if error.dump_id:
            response.headers[DUMP_ID] = error.dump_id
    return response


async def _generate(request: web.Request) -> web.StreamResponse:
    serving = request.app[SERVING]
    flags = parse_flags(request.headers.getall(INTERNAL_FLAGS, ()))
    body = parse_object(await _read(request))
    defects = serving.defects
    call = parse_call(request.path, body, vocab_size=serving.vocab_size, flags=flags, defects=defects)
    if call.model not in serving.model_names:
        raise ApiError(404, f"The model {call.model[:128]!a} does not exist.", param="model", code="model_not_found")
    prompts = await asyncio.to_thread(
        serving.encoder.prompts, call, serving.config, serving.vocab_size, defects=defects
    )
    choices = len(prompts) * call.n
    _check_capacity(serving, choices)
    generation = Generation(
        call,
        prompts,
        engine=serving.engine,
        vocabulary=serving.vocabulary,
        timeout_s=serving.request_timeout_s,
    )
    shape = wire.AnswerShape(
        id=generation.id, model=call.model, created=int(time.time()), chat=call.chat, fingerprint=serving.fingerprint
    )
    serving.in_flight += choices
    try:
        with generation:
            return await (_stream if call.stream else _whole)(request, generation, shape)
    except EngineStuck as stuck:
        stuck.dump_id = await asyncio.to_thread(serving.engine.session.dump_from_outside, "timeout")
        raise
    finally:
        serving.in_flight -= choices


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.RequestPayloadError:
        raise invalid("The request body does not fit its Content-Encoding.", code="invalid_body") from None


def _check_capacity(serving: Serving, choices: int) -> None:
    if serving.closing:
        raise ApiError(503, "The server is shutting down.", code="shutting_down")
    if choices > serving.capacity:
        raise invalid(f"The request asks for {choices} answers; the server takes {serving.capacity}.", "n", "too_many")
    if serving.in_flight + choices > serving.capacity:
        raise ApiError(503, "The server is at capacity; try again later.", code="overloaded")


async def _whole(request: web.Request, generation: Generation, shape: wire.AnswerShape) -> web.StreamResponse:
    async for _ in generation.updates():
        pass
    body = shape.body(generation.choices(), generation.usage)
    response = web.Response(body=wire.encode(body), content_type="application/json")
    if generation.dump_id:
        response.headers[DUMP_ID] = generation.dump_id
    return response


async def _stream(request: web.Request, generation: Generation, shape: wire.AnswerShape) -> web.StreamResponse:
    """Server-sent events. Headers wait for the first token, so that a request that fails at once gets a real status."""
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            REQUEST_ID: request["id"],
        }
    )
    call = generation.call
    try:
        async for piece in generation.updates():
            if not response.prepared:
                await response.prepare(request)
                if call.chat:
                    for index in range(len(generation.answers)):
                        await response.write(wire.event(shape.role_chunk(index)))
            if (chunk := piece.chunk(call, shape)) is not None:
                await response.write(wire.event(chunk))
    except GenerationFailed as error:
        if not response.prepared:
            raise
        await _note_dump(response, error.dump_id)
        await response.write(wire.event(error.body))
        await response.write_eof()
        return response
    await _note_dump(response, generation.dump_id)
    if call.include_usage:
        await response.write(wire.event(shape.usage_chunk(generation.usage)))
    await response.write(wire.DONE)
    await response.write_eof()
    return response


async def _note_dump(response: web.StreamResponse, dump_id: str | None) -> None:
    """A comment line: clients skip it, a person with curl sees it. The headers have gone out long ago."""
    if dump_id:
        await response.write(f": {DUMP_ID} {dump_id}\n\n".encode())


async def _models(request: web.Request) -> web.Response:
    serving = request.app[SERVING]
    return _json(wire.model_list(serving.model_names, serving.created))


async def _model(request: web.Request) -> web.Response:
    serving = request.app[SERVING]
    name = request.match_info["name"]
    if name not in serving.model_names:
        raise ApiError(404, f"The model {name[:128]!a} does not exist.", param="model", code="model_not_found")
    return _json(wire.model_list([name], serving.created)["data"][0])


async def _health(request: web.Request) -> web.Response:
    alive = request.app[SERVING].engine.alive
    return _json({"status": "ok" if alive else "engine thread died"}, status=200 if alive else 503)


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[SERVING].metrics.text().encode(), headers={"Content-Type": CONTENT_TYPE})


def _json(body: dict[str, object], status: int = 200) -> web.Response:
    return web.Response(status=status, body=wire.encode(body), content_type="application/json")
