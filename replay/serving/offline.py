"""Answers chat and completion requests without a server: the model side of a replayed program.

Runs in a worker of its own. The supervisor hands it the requests that the program makes, one after another, each as the
answer to this worker's question for more. What comes back for each is the HTTP answer that the reference server gives:
the same parser, prompts, engine and text, in a batch of one, which by construction changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay import openai_wire as wire
from replay.engine.detokenize import Vocabulary
from replay.engine.engine import Engine
from replay.engine.failure import FailureKind
from replay.engine.live import LiveScheduler
from replay.engine.loaded import LoadedModel
from replay.engine.request import FinishCause, FinishReason, Request
from replay.engine.runner import ModelRunner
from replay.engine.schedule import EngineConfig
from replay.engine.stop_strings import StopStrings, TextStream
from replay.engine.weights import load_model
from replay.errors import ReplayError
from replay.models.fingerprint import examine
from replay.models.locate import locate
from replay.openai_wire import ApiError, invalid
from replay.serving.fields import parse_object
from replay.serving.fingerprint import SystemFingerprint
from replay.serving.generation import Answer
from replay.serving.internal_flags import parse_flags
from replay.serving.jobs import Update, ended
from replay.serving.prompts import PromptEncoder
from replay.serving.requests import Call, parse_call

BLOCK_SIZE = 16
BATCHED_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineModel:
    """Loaded weights with what turns text into tokens and back."""

    model: LoadedModel
    encoder: PromptEncoder
    vocabulary: Vocabulary
    fingerprint: SystemFingerprint


def answer_calls(job: Mapping[str, Any], channel: Any) -> dict[str, Any]:
    """Answer requests until the supervisor says ``{"end": true}``.

    ``job`` may name the weights: ``model`` is a path, ``device`` a device. Each request is
    ``{"path", "body", "flags", "served_as", "id", "created"}``: the body as text, the fingerprint of the server that
    answered when it was recorded ("" where unknown), and what no model decides. The answer is ``{"status", "chunks"}``
    with one text for each server-sent event, or one for the whole body; or ``{"error": {"class", "message",
    "remedy"}}`` where there is no model to answer with.
    """
    models: dict[str, OfflineModel] = {}
    answer: dict[str, Any] = {}
    # From here on time is that of the program's replay, which does not count what the model takes.
    channel({"event": "step-started"})
    count = 0
    while not (question := channel.ask(answer)).get("end"):
        count += 1
        try:
            answer = _answer(question, models, job)
        except ApiError as error:
            answer = {"status": error.status, "chunks": [wire.encode(error.body).decode()]}
        except ReplayError as error:
            problem = {"class": type(error).__name__, "message": str(error), "remedy": error.remedy}
            answer = {"error": problem}
    return {"answered": count}


def _answer(question: Mapping[str, Any], models: dict[str, OfflineModel], job: Mapping[str, Any]) -> dict[str, Any]:
    body = parse_object(str(question["body"]).encode())
    served_as, name = str(question.get("served_as") or ""), body.get("model")
    if not isinstance(name, str):
        raise invalid("Missing required parameter: 'model'.", "model", "missing_required_parameter")
    key = f"{served_as} {name}"
    if key not in models:
        models[key] = load_offline(name, SystemFingerprint.parse(served_as), job)
    offline = models[key]
    flags = parse_flags([str(question["flags"])] if question.get("flags") else ())
    call = parse_call(str(question["path"]), body, vocab_size=offline.model.vocab_size, flags=flags)
    shape = wire.AnswerShape(
        id=str(question.get("id") or "replayed"),
        model=call.model,
        created=int(question.get("created") or 0),
        chat=call.chat,
        fingerprint=served_as or str(offline.fingerprint),
    )
    return {"status": 200, "chunks": [chunk.decode() for chunk in answer_chunks(offline, call, shape)]}


def load_offline(name: str, served_as: SystemFingerprint | None, job: Mapping[str, Any]) -> OfflineModel:
    """The model that answers for ``name``, computed as by the server that is known by ``served_as``.

    Raises `ModelUnavailable`, `UnsupportedModel` and `DeviceUnavailable`.
    """
    explicit = job.get("model")
    folder = locate(
        None if explicit else name,
        fingerprint=served_as.weights if served_as else None,
        explicit=Path(str(explicit)) if explicit else None,
    )
    weights = examine(folder)
    dtype = served_as.dtype if served_as else ("bfloat16" if weights.dtype == "BF16" else "float32")
    kernels = "stock" if served_as is not None and served_as.kernels == "stock" else "exact"
    model = load_model(folder, dtype=dtype, kernels=kernels, device=str(job.get("device") or "cpu"))  # type: ignore[arg-type]
    encoder = PromptEncoder(folder)
    return OfflineModel(
        model=model,
        encoder=encoder,
        vocabulary=Vocabulary(encoder.tokenizer),
        fingerprint=served_as
        or SystemFingerprint(weights="0" * 16, dtype=model.dtype, kernels=model.kernels, kv_quant_bits=0),
    )


def answer_chunks(offline: OfflineModel, call: Call, shape: wire.AnswerShape) -> list[bytes]:
    """The body of the answer: whole, or one piece for each server-sent event.

    Raises:
        ApiError: the request cannot be served, or its answer is not finite, as the reference server would say.
    """
    prompts = offline.encoder.prompts(
        call, _engine_config(offline, offline.model.max_position_embeddings), offline.model.vocab_size
    )
    requests = [
        Request(
            id=f"{shape.id}-{number * call.n + sample}",
            tokens=list(prompt.tokens),
            num_prompt=len(prompt.tokens),
            sampling=call.sampling,
            sample_index=sample,
            flags=call.flags,
        )
        for number, prompt in enumerate(prompts)
        for sample in range(call.n)
    ]
    stop, min_tokens = call.sampling.stop, call.sampling.min_tokens
    answers = [Answer(TextStream(offline.vocabulary, stop=stop, min_tokens=min_tokens)) for _ in requests]
    pieces = [answers[update.choice].take(update) for update in _generate(offline, requests)]
    usage = wire.Usage(
        prompt_tokens=sum(len(prompt.tokens) for prompt in prompts),
        completion_tokens=sum(len(answer.tokens) for answer in answers),
    )
    if not call.stream:
        choices = [answer.whole(index, token_ids=call.return_token_ids) for index, answer in enumerate(answers)]
        return [wire.encode(shape.body(choices, usage))]
    events = [wire.event(shape.role_chunk(index)) for index in range(len(answers))] if call.chat else []
    events += [wire.event(chunk) for piece in pieces if (chunk := piece.chunk(call, shape)) is not None]
    if call.include_usage:
        events.append(wire.event(shape.usage_chunk(usage)))
    return [*events, wire.DONE]


def _engine_config(offline: OfflineModel, blocks: int, sequences: int = 1) -> EngineConfig:
    return EngineConfig(
        num_blocks=blocks,
        max_model_len=offline.model.max_position_embeddings,
        block_size=BLOCK_SIZE,
        max_num_seqs=sequences,
        max_num_batched_tokens=BATCHED_TOKENS,
        kv_quant_bits=offline.fingerprint.kv_quant_bits,
    )


def _generate(offline: OfflineModel, requests: list[Request]) -> Iterator[Update]:
    """Run the choices of one call in an engine with room for all of them, and say what each step brought."""
    model = offline.model
    longest = model.max_position_embeddings
    blocks = sum(
        -(-min(request.num_prompt + (request.sampling.max_tokens or longest), longest) // BLOCK_SIZE)
        for request in requests
    )
    config = _engine_config(offline, blocks, len(requests))
    kv = model.kv_store(num_blocks=blocks, block_size=BLOCK_SIZE, quant_bits=config.kv_quant_bits)
    scheduler = LiveScheduler(config, eos_token_ids=model.eos_token_ids, stop_check=StopStrings(offline.vocabulary))
    engine = Engine(scheduler=scheduler, executor=ModelRunner(model, kv))
    choice_of = {request: index for index, request in enumerate(requests)}
    for request in requests:
        engine.add(request)
    while (outcome := engine.step()) is not None:
        if outcome.failures and outcome.failures[0].kind is FailureKind.NON_FINITE:
            end = ended(FinishReason.ERROR, FinishCause.NON_FINITE)
            raise ApiError(end.status, end.message, code=FinishCause.NON_FINITE.value)
        ends = {finish.request: ended(finish.reason, finish.cause) for finish in outcome.finished}
        for chunk in outcome.plan.chunks:
            sample = outcome.samples.get(chunk.request.id)
            if sample is not None:
                yield Update(choice_of[chunk.request], sample.token, ends.pop(chunk.request, None))
        for request, end in ends.items():
            yield Update(choice_of[request], None, end)
