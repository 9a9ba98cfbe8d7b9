"""Failures in words: one sentence that says what happened, to whom, and where."""

from __future__ import annotations

from dumps.schema import state_pb2 as pb
from dumps.text import printable


def describe_failure(state: pb.RuntimeState, failure: pb.Failure) -> str:
    """One or two sentences, safe to print."""
    text = _BY_KIND.get(failure.kind, _other)(state, failure)
    if failure.message:
        text += f' Message: "{printable(failure.message, 400)}"'
    return text


def _truncation(state: pb.RuntimeState, failure: pb.Failure) -> str:
    text = f"{_request(state, failure)} was cut short without being told so"
    at = f" when it had {failure.seq_len_exceeded_at} tokens" if failure.HasField("seq_len_exceeded_at") else ""
    if failure.invariant == "kv-pool-exhausted":
        text += f": the KV cache had no block left{at}{_bytes(failure)}"
    elif failure.invariant == "max-model-len":
        text += f": it reached the longest sequence the engine takes{at}"
    else:
        text += f"{at}{_invariant(failure)}"
    return f"{text}{_step(failure)}."


def _non_finite(state: pb.RuntimeState, failure: pb.Failure) -> str:
    whose = f" of {_request(state, failure, capital=False)}" if failure.HasField("request") else ""
    place = failure.non_finite
    if not failure.HasField("non_finite") or place.where == "logits":
        return f"The logits{whose} held NaN or infinity{_step(failure)}, and the KV cache does not explain it."
    parts = [f"{name} {getattr(place, name)}" for name in ("layer", "block", "slot") if place.HasField(name)]
    text = f"The KV cache{whose} held NaN or infinity{_step(failure)}: {', '.join(parts)}"
    if place.tensor:
        text += f", {printable(place.tensor, 20)} tensor"
    if place.HasField("position"):
        text += f", token position {place.position}"
    return text + (f", last written by step {place.written_by_step}." if place.HasField("written_by_step") else ".")


def _exception(state: pb.RuntimeState, failure: pb.Failure) -> str:
    what = printable(failure.exception_type, 100) or "An exception"
    whose = f" while {_request(state, failure, capital=False)} was served" if failure.HasField("request") else ""
    return f"{what} was raised{whose}{_step(failure)}{_bytes(failure)}{_invariant(failure)}."


def _timeout(state: pb.RuntimeState, failure: pb.Failure) -> str:
    return f"{_request(state, failure)} did not finish in time{_step(failure)}{_invariant(failure)}."


def _stall(state: pb.RuntimeState, failure: pb.Failure) -> str:
    return f"{_request(state, failure)} made no progress any more{_step(failure)}{_invariant(failure)}."


def _death(state: pb.RuntimeState, failure: pb.Failure) -> str:
    return f"The process died{_step(failure)}{_invariant(failure)}, and its dump was made from its flight recorder."


def _other(state: pb.RuntimeState, failure: pb.Failure) -> str:
    kind = printable(failure.kind, 60) or "of no kind"
    return f"A failure {kind!r} was recorded{_step(failure)}{_invariant(failure)}."


_BY_KIND = {
    "silent-truncation": _truncation,
    "non-finite": _non_finite,
    "exception": _exception,
    "timeout": _timeout,
    "stall": _stall,
    "process-death": _death,
}


def _request(state: pb.RuntimeState, failure: pb.Failure, *, capital: bool = True) -> str:
    if not failure.HasField("request"):
        return "A request" if capital else "a request"
    known = failure.request < len(state.requests)
    name = printable(state.requests[failure.request].id, 60) if known else f"{failure.request} (unknown)"
    return f"{'R' if capital else 'r'}equest {name}"


def _step(failure: pb.Failure) -> str:
    return f", in step {failure.step}" if failure.HasField("step") else ""


def _invariant(failure: pb.Failure) -> str:
    return f" ({printable(failure.invariant, 60)})" if failure.invariant else ""


def _bytes(failure: pb.Failure) -> str:
    if not (failure.HasField("kv_cache_used_bytes") and failure.HasField("max_kv_cache_bytes")):
        return ""
    return f" ({failure.kv_cache_used_bytes:,} of {failure.max_kv_cache_bytes:,} bytes in use)"
