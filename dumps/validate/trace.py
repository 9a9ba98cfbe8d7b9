"""Rules of trace events: what they name exists, and a fallback decision is one that its step could take."""

from __future__ import annotations

from dumps.schema import state_pb2 as pb
from dumps.trace import FALLBACK, FallbackEvent, read_fallback
from dumps.validate.finding import Finding, Findings, check_range


def check_trace(state: pb.RuntimeState) -> Findings:
    """All rules of ``state.trace_events``."""
    draws: dict[tuple[int, int], pb.Scheduled] | None = None
    for index, event in enumerate(state.trace_events):
        path = f"trace_events[{index}]"
        if event.HasField("request") and event.request >= len(state.requests):
            yield Finding("trace.request-index", f"{path}.request", f"there is no request {event.request}")
            continue
        if event.name != FALLBACK:
            continue
        try:
            fallback = read_fallback(event)
        except ValueError as error:
            yield Finding("trace.fallback", path, f"not readable: {error}")
            continue
        if draws is None:
            draws = {(step.index, chunk.request): chunk for step in state.steps for chunk in step.scheduled}
        yield from _fallback(state, fallback, draws.get((fallback.step, fallback.request)), path)


def _fallback(state: pb.RuntimeState, fallback: FallbackEvent, chunk: pb.Scheduled | None, path: str) -> Findings:
    if chunk is None or not chunk.sampled:
        message = f"step {fallback.step} drew no token for request {fallback.request}"
        yield Finding("trace.fallback", f"{path}.step", message)
    elif chunk.start + chunk.num_tokens != fallback.position:
        message = f"position {fallback.position}; its step drew that of position {chunk.start + chunk.num_tokens}"
        yield Finding("trace.fallback", path, message)
    elif chunk.HasField("sampled_token") and fallback.token not in (None, chunk.sampled_token):
        yield Finding("trace.fallback", path, f"token {fallback.token}; its step drew {chunk.sampled_token}")
    known = [fallback.token] if fallback.token is not None else []
    known += [token for token, _ in fallback.candidates]
    if known and state.manifest.record_level == "shape":
        yield Finding("trace.level", f"{path}.args", "token ids recorded although the level is 'shape'")
    yield from check_range("trace.fallback", f"{path}.args", known, state.model.vocab_size, "token id")
