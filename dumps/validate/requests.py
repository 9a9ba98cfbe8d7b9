"""Rules of the requests: lengths, token ids, how they ended, and their sampling parameters."""

from __future__ import annotations

import math

from dumps.ledger import weakest
from dumps.schema import state_pb2 as pb
from dumps.validate.finding import Finding, Findings, check_le32, check_range, whole_ids

STATUSES = ("waiting", "running", "preempted", "finished")
REASONS = ("stop", "length", "abort", "error")
REASON_OF_CAUSE = {
    "eos": "stop",
    "stop-token": "stop",
    "stop-string": "stop",
    "early-exit": "stop",
    "max-tokens": "length",
    "kv-pool-exhausted": "length",
    "max-model-len": "length",
}
"""What a client is told for a cause. Causes that are not here may go with any reason."""

DIGEST_BYTES = 8

UNCHECKED = "token-ids-unchecked"
"""The quirk of engines that take any token id in sampling parameters."""


def check_requests(state: pb.RuntimeState) -> Findings:
    """All rules of ``state.requests``."""
    seen: dict[str, int] = {}
    for index, request in enumerate(state.requests):
        path = f"requests[{index}]"
        if not request.id:
            yield Finding("requests.id", f"{path}.id", "a request without an id")
        elif seen.setdefault(request.id, index) != index:
            yield Finding("requests.id", f"{path}.id", f"the same id as requests[{seen[request.id]}]")
        yield from _tokens(state, request, path)
        yield from _end(state, request, path)
        yield from _level(state, request, path)
        if request.HasField("sampling"):
            yield from _sampling(request, f"{path}.sampling")
            yield from _sampling_ids(state, request, f"{path}.sampling")
        if request.flags.HasField("early_exit") and not 0.0 < request.flags.early_exit <= 1.0:
            message = f"{request.flags.early_exit} must be above 0 and at most 1"
            yield Finding("requests.sampling", f"{path}.flags.early_exit", message)


def _tokens(state: pb.RuntimeState, request: pb.Request, path: str) -> Findings:
    vocab = state.model.vocab_size
    lists = (
        ("prompt_token_ids", request.num_prompt_tokens),
        ("output_token_ids", request.num_output_tokens),
    )
    for name, count in lists:
        if request.HasField(name):
            data = getattr(request, name)
            yield from check_le32("requests.token-count", f"{path}.{name}", data, count)
            if vocab:
                yield from check_range("requests.token-id", f"{path}.{name}", whole_ids(data), vocab, "token id")
    if request.HasField("output_digests") and len(request.output_digests) != DIGEST_BYTES * request.num_output_tokens:
        message = f"{len(request.output_digests)} bytes for {request.num_output_tokens} output tokens of 8 each"
        yield Finding("requests.digests", f"{path}.output_digests", message)
    if request.num_prompt_tokens < 1:
        yield Finding("requests.length", f"{path}.num_prompt_tokens", "a prompt has at least one token")
    total, limit = request.num_prompt_tokens + request.num_output_tokens, state.engine.max_model_len
    if limit and total > limit:
        yield Finding("requests.length", path, f"{total} tokens, more than max_model_len {limit}")


def _end(state: pb.RuntimeState, request: pb.Request, path: str) -> Findings:
    if request.status not in STATUSES:
        yield Finding("requests.status", f"{path}.status", f"not one of {', '.join(STATUSES)}")
    if request.finish_reason and request.finish_reason not in REASONS:
        yield Finding("requests.finish", f"{path}.finish_reason", f"not one of {', '.join(REASONS)}")
    finished = request.status == "finished"
    if finished and not request.finish_reason and weakest(state, f"{path}.finish_reason").grade != pb.ABSENT:
        yield Finding("requests.finish", f"{path}.finish_reason", "a finished request has a reason")
    if not finished and (request.finish_reason or request.finish_cause or request.HasField("finish_step")):
        yield Finding(
            "requests.finish", f"{path}.status", "a request with a reason, cause or step of its end is finished"
        )
    wanted = REASON_OF_CAUSE.get(request.finish_cause)
    if finished and wanted and request.finish_reason != wanted:
        message = f"cause {request.finish_cause} goes with {wanted}, not with what is recorded"
        yield Finding("requests.finish", f"{path}.finish_reason", message)
    most = request.sampling.max_tokens
    if most and request.num_output_tokens > most:
        message = f"{request.num_output_tokens} output tokens, asked for at most {most}"
        yield Finding("requests.length", f"{path}.num_output_tokens", message)
    if request.finish_cause == "max-tokens" and request.num_output_tokens < most:
        message = f"ended by max-tokens after {request.num_output_tokens} of {most}"
        yield Finding("requests.finish", f"{path}.finish_cause", message)


def _level(state: pb.RuntimeState, request: pb.Request, path: str) -> Findings:
    """Nobody's text is in a dump whose level does not allow it."""
    level = state.manifest.record_level
    texts = ("prompt_text", "output_text")
    tokens = ("prompt_token_ids", "output_token_ids")
    forbidden = {"shape": texts + tokens, "tokens": texts}.get(level, ())
    for name in forbidden:
        if request.HasField(name):
            yield Finding("requests.level", f"{path}.{name}", f"recorded although the level is {level!r}")
    if level == "shape" and request.sampling.stop:
        yield Finding("requests.level", f"{path}.sampling.stop", "recorded although the level is 'shape'")


def _sampling(request: pb.Request, path: str) -> Findings:
    sampling = request.sampling
    ranges = (
        ("temperature", 0.0 <= sampling.temperature < math.inf, "must not be negative"),
        ("top_p", 0.0 < sampling.top_p <= 1.0, "must be above 0 and at most 1"),
        ("min_p", 0.0 <= sampling.min_p < 1.0, "must be at least 0 and below 1"),
        ("presence_penalty", -2.0 <= sampling.presence_penalty <= 2.0, "must be between -2 and 2"),
        ("frequency_penalty", -2.0 <= sampling.frequency_penalty <= 2.0, "must be between -2 and 2"),
        ("repetition_penalty", 0.0 < sampling.repetition_penalty < math.inf, "must be positive"),
    )
    for name, holds, wrong in ranges:
        if not holds:
            yield Finding("requests.sampling", f"{path}.{name}", f"{getattr(sampling, name)} {wrong}")
    for index, bias in enumerate(sampling.logit_bias):
        if not -100.0 <= bias.bias <= 100.0:
            message = f"{bias.bias} must be between -100 and 100"
            yield Finding("requests.sampling", f"{path}.logit_bias[{index}].bias", message)


def _sampling_ids(state: pb.RuntimeState, request: pb.Request, path: str) -> Findings:
    """Token ids of sampling parameters are in the vocabulary.

    An engine that did not check them, and says so, has them on record and may have failed by them: that is a rule of
    its own, since a replay of it must go on.
    """
    unchecked = any(quirk.name == UNCHECKED for quirk in state.quirks)
    rule = "requests.unchecked-id" if unchecked else "requests.sampling"
    vocab = state.model.vocab_size
    for index, bias in enumerate(request.sampling.logit_bias):
        yield from check_range(rule, f"{path}.logit_bias[{index}].token_id", [bias.token_id], vocab, "token id")
    yield from check_range(rule, f"{path}.stop_token_ids", list(request.sampling.stop_token_ids), vocab, "token id")
