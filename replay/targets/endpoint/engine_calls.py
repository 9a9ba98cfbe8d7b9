"""The HTTP requests that the recorded sequences of an engine came from, as an OpenAI-compatible server takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dumps.schema import state_pb2 as pb
from dumps.tensors import from_le32
from replay.targets.endpoint.plan import Call, Recorded

Decode = Callable[[Sequence[int], bool], str]
"""Text of token ids, and whether special tokens are spelled out."""

_CHOICE = re.compile(r"(.+)-([0-9]{1,6})")

# Every server of this API has these, and some take their defaults from the model's files: always said.
_ALWAYS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
# Extensions, with the value that asks for nothing: said only where they ask for something.
_EXTENSIONS: Mapping[str, Any] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": False,
    "min_tokens": 0,
}


def engine_calls(state: pb.RuntimeState, model: str, decode: Decode | None) -> list[Call]:
    """The requests in order of arrival. Each needs its prompt's token ids; see `untold`.

    Choices of one prompt that were asked for together are one request with ``n``, as they were sent; two prompts of
    one request are two requests at the same time.
    """
    groups: dict[tuple[Any, ...], list[pb.Request]] = {}
    for index, request in enumerate(state.requests):
        groups.setdefault(_together(index, request), []).append(request)
    first = min((request.arrival_ns for request in state.requests), default=0)
    calls = [_call(state, group, first, model, decode) for group in groups.values()]
    return sorted(calls, key=lambda call: call.at_s)


def untold(state: pb.RuntimeState) -> list[str]:
    """Ids of requests whose prompt was not recorded, so that it cannot be sent again."""
    return [request.id for request in state.requests if not request.prompt_token_ids]


def _together(index: int, request: pb.Request) -> tuple[Any, ...]:
    """What the choices of one HTTP request have in common: the server numbers their ids."""
    named = _CHOICE.fullmatch(request.id)
    if named is None or int(named[2]) < request.sample_index:
        return (index,)
    sampling = request.sampling.SerializeToString(deterministic=True)
    return named[1], int(named[2]) - request.sample_index, sampling, request.prompt_token_ids


def _call(state: pb.RuntimeState, group: list[pb.Request], first: int, model: str, decode: Decode | None) -> Call:
    # A recorder that forgot some of the choices leaves gaps; the server is still asked for as many as the client was.
    n = 1 if len(group) == 1 and group[0].sample_index == 0 else 1 + max(one.sample_index for one in group)
    known = {one.sample_index: one for one in group}
    head = group[0]
    prompt = from_le32(head.prompt_token_ids)
    arrival = min(one.arrival_ns for one in group)
    limit = head.sampling.max_tokens
    # One more than fits: an answer of just the recorded server's length would end by our own limit, and a limit of
    # ours must not be what is found.
    asked = limit or max(1, state.engine.max_model_len - len(prompt) + 1)
    text = head.prompt_text if head.HasField("prompt_text") else decode(prompt, True) if decode else None
    leaves = [ns for one in group if (ns := _left_at(state, one)) is not None]
    return Call(
        at_s=(arrival - first) / 1e9,
        path="/completions",
        body=_body(head.sampling, prompt, n=n, asked=asked, model=model),
        n=n,
        asked=asked,
        unlimited=limit == 0,
        text=text,
        abort_s=max(0.0, (max(leaves) - arrival) / 1e9) if len(leaves) == len(group) else None,
        recorded=tuple(_recorded(known[i], decode) if i in known else Recorded(id="") for i in range(n)),
    )


def _body(sampling: pb.SamplingParams, prompt: list[int], *, n: int, asked: int, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": asked}
    body |= {name: getattr(sampling, name) for name in _ALWAYS}
    body |= {name: value for name, off in _EXTENSIONS.items() if (value := getattr(sampling, name)) != off}
    # Most servers read a signed 64-bit integer; ours takes it modulo 2**64, so that it stays the same seed.
    body["seed"] = sampling.seed - 2**64 if sampling.seed >= 2**63 else sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = {str(one.token_id): one.bias for one in sampling.logit_bias}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        body["stop_token_ids"] = list(sampling.stop_token_ids)
    if n > 1:
        body["n"] = n
    # Streamed whatever the client did: only a stream tells a server that computes from one that hangs.
    return body | {"stream": True, "stream_options": {"include_usage": True}}


def _recorded(request: pb.Request, decode: Decode | None) -> Recorded:
    text = request.output_text if request.HasField("output_text") else None
    if text is None and decode is not None and request.HasField("output_token_ids"):
        text = decode(from_le32(request.output_token_ids), False)
    return Recorded(
        id=request.id,
        status=request.status,
        finish_reason=request.finish_reason,
        prompt_len=request.num_prompt_tokens,
        output_len=request.num_output_tokens,
        text=text,
    )


def _left_at(state: pb.RuntimeState, request: pb.Request) -> int | None:
    """When its client hung up, monotonic ns: the step before which that was seen. None if it did not."""
    if request.finish_cause != "client-gone" or not request.HasField("finish_step"):
        return None
    return next((step.start_ns for step in state.steps if step.index == request.finish_step), None)
