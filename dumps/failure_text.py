"""Failures in words: one sentence that says what happened, to whom, and where."""

from __future__ import annotations

from dumps.schema import state_pb2 as pb
from dumps.text import printable


def describe_failure(state: pb.RuntimeState, failure: pb.Failure) -> str:
    """One or two sentences, safe to print."""
    words = _in_program if state.HasField("program") else _BY_KIND.get(failure.kind, _other)
    text = words(state, failure)
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


def _contamination(state: pb.RuntimeState, failure: pb.Failure) -> str:
    what = _MISREAD.get(failure.invariant, f"a KV slot that is not its own{_invariant(failure)}")
    text = f"{_request(state, failure)} met {what}{_step(failure)}"
    if failure.HasField("position"):
        text += f", for token position {failure.position}"
    if not failure.HasField("read"):
        return f"{text}."
    read = failure.read
    text += f": block {read.block}, slot {read.slot}, last written by "
    writer = f"request {printable(read.writer, 60)}" if read.writer else "nobody that is known"
    at = f" for its position {read.writer_position}" if read.HasField("writer_position") else ""
    return f"{text}{writer}{at}{f' in step {read.written_by_step}' if read.HasField('written_by_step') else ''}."


def _exception(state: pb.RuntimeState, failure: pb.Failure) -> str:
    what = printable(failure.exception_type, 100) or "An exception"
    whose = f" while {_request(state, failure, capital=False)} was served" if failure.HasField("request") else ""
    stage = failure.non_finite.where if failure.HasField("non_finite") else ""
    first = f"; the sampler's stage {printable(stage, 20)} was the first that was not finite" if stage else ""
    return f"{what} was raised{whose}{_step(failure)}{_bytes(failure)}{_invariant(failure)}{first}."


def _timeout(state: pb.RuntimeState, failure: pb.Failure) -> str:
    return f"{_request(state, failure)} did not finish in time{_step(failure)}{_invariant(failure)}."


def _stall(state: pb.RuntimeState, failure: pb.Failure) -> str:
    return f"{_request(state, failure)} made no progress any more{_step(failure)}{_invariant(failure)}."


def _death(state: pb.RuntimeState, failure: pb.Failure) -> str:
    return f"The process died{_step(failure)}{_invariant(failure)}, and its dump was made from its flight recorder."


def _other(state: pb.RuntimeState, failure: pb.Failure) -> str:
    kind = printable(failure.kind, 60) or "of no kind"
    return f"A failure {kind!r} was recorded{_step(failure)}{_invariant(failure)}."


def _in_program(state: pb.RuntimeState, failure: pb.Failure) -> str:
    """Of a recorded program: its steps are the calls that it had made to the world outside."""
    inbound = next((one for one in state.exchanges if one.id == failure.exchange and one.direction == "in"), None)
    served = "" if inbound is None else printable(f"{inbound.method} {inbound.url} ({inbound.id})", 200)
    where = f" in {printable(failure.frame, 200)}" if failure.frame else ""
    while_served = f" while {served} was served" if served else ""
    calls = "call" if failure.step == 1 else "calls"
    after = f", after {failure.step} {calls}" if failure.HasField("step") else ""
    if failure.invariant == "client-gone":
        return f"The client{f' of {served}' if served else ''} went away; the program was{where}{after}."
    if failure.kind == "timeout":
        return f"{served or 'The program'} did not finish in time; it was{where}{after}."
    if failure.kind == "exception":
        return f"{printable(failure.exception_type, 100) or 'An exception'} was raised{where}{while_served}{after}."
    return f"A failure {printable(failure.kind, 60)!r} was recorded{where}{while_served}{after}."


# By the invariants of replay.engine.contamination.
_MISREAD = {
    "slot-foreign": "another request's token in a KV slot",
    "slot-unwritten": "a KV slot that nobody had written since its block was handed out",
    "slot-freed": "a KV slot of a block that had been given back",
    "block-freed": "a KV block of its own that had been given back, and wrote it",
    "block-shared": "a KV block that others held too, and wrote it",
}

_BY_KIND = {
    "silent-truncation": _truncation,
    "non-finite": _non_finite,
    "contamination": _contamination,
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
