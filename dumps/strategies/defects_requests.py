"""Defects of manifest, failures, ledger, requests and trace events."""

from __future__ import annotations

from collections.abc import Iterator

from dumps.schema import state_pb2 as pb
from dumps.strategies.defect import Change, Defect, both, clear, put
from dumps.tensors import from_le32, le32
from dumps.trace import FALLBACK, FallbackEvent, add_fallback
from dumps.validate.requests import UNCHECKED

_FAR = 10**6  # beyond any list of a drawn state


def _id(state: pb.RuntimeState) -> Iterator[Change]:
    for wrong in ("", "0123", "g" * 16):
        yield put(state.manifest, id=wrong)


def _reason(state: pb.RuntimeState) -> Iterator[Change]:
    yield put(state.manifest, reason="because")


def _level(state: pb.RuntimeState) -> Iterator[Change]:
    if not state.HasField("program") and not state.tool_calls and not state.exchanges:
        yield put(state.manifest, record_level="all")


def _platform(state: pb.RuntimeState) -> Iterator[Change]:
    yield put(state.manifest, platform_fingerprint="ab")


def _failure_kind(state: pb.RuntimeState) -> Iterator[Change]:
    yield lambda: state.failures.add(kind="odd")
    for failure in state.failures:
        yield put(failure, kind="odd")


def _failure_request(state: pb.RuntimeState) -> Iterator[Change]:
    yield lambda: state.failures.add(kind="exception", request=len(state.requests))
    for failure in state.failures:
        yield put(failure, request=len(state.requests))


def _failure_step(state: pb.RuntimeState) -> Iterator[Change]:
    if state.steps or state.HasField("program"):
        yield lambda: state.failures.add(kind="exception", step=_FAR)
    if state.steps and not state.HasField("program"):
        for failure in state.failures:
            yield put(failure, step=state.steps[-1].index + 2)


def _failure_bytes(state: pb.RuntimeState) -> Iterator[Change]:
    yield lambda: state.failures.add(kind="exception", kv_cache_used_bytes=2, max_kv_cache_bytes=1)


def _failure_read(state: pb.RuntimeState) -> Iterator[Change]:
    for name, limit in (("block", state.kv.num_blocks), ("slot", state.kv.block_size)):
        if limit:
            yield lambda name=name, limit=limit: setattr(  # type: ignore[misc]
                state.failures.add(kind="contamination").read, name, limit
            )


def _failure_non_finite(state: pb.RuntimeState) -> Iterator[Change]:
    yield lambda: state.failures.add(kind="non-finite").non_finite.MergeFrom(pb.NonFinite(where="disk"))
    if state.kv.num_blocks:
        place = pb.NonFinite(where="kv-cache", block=state.kv.num_blocks)
        yield lambda: state.failures.add(kind="non-finite").non_finite.MergeFrom(place)


def _ledger_grade(state: pb.RuntimeState) -> Iterator[Change]:
    yield lambda: state.ledger.add(path="requests")


def _request_id(state: pb.RuntimeState) -> Iterator[Change]:
    for index, request in enumerate(state.requests):
        yield put(request, id="")
        if index:
            yield put(request, id=state.requests[0].id)


def _token_count(state: pb.RuntimeState) -> Iterator[Change]:
    for request in state.requests:
        if request.HasField("output_token_ids"):
            yield put(request, output_token_ids=request.output_token_ids + le32([0]))
            yield put(request, output_token_ids=request.output_token_ids + b"\0")
        if request.HasField("prompt_token_ids"):
            yield put(request, prompt_token_ids=request.prompt_token_ids + b"\0")


def _token_id(state: pb.RuntimeState) -> Iterator[Change]:
    """In prompts, where no hash and no step tells otherwise."""
    vocab = state.model.vocab_size
    if state.engine.prefix_cache or not vocab:
        return
    for request in state.requests:
        tokens = from_le32(request.prompt_token_ids)
        for place in range(len(tokens)):
            for wrong in (vocab, -1):
                yield put(request, prompt_token_ids=le32([*tokens[:place], wrong, *tokens[place + 1 :]]))


def _digests(state: pb.RuntimeState) -> Iterator[Change]:
    for request in state.requests:
        yield put(request, output_digests=bytes(8 * request.num_output_tokens + 1))


def _length(state: pb.RuntimeState) -> Iterator[Change]:
    for request in state.requests:
        total = request.num_prompt_tokens + request.num_output_tokens
        if total > 1:
            yield put(state.engine, max_model_len=total - 1)
        if request.num_output_tokens > 1:
            yield put(request.sampling, max_tokens=request.num_output_tokens - 1)


def _status(state: pb.RuntimeState) -> Iterator[Change]:
    for request in state.requests:
        if request.status != "finished":
            yield put(request, status="asleep")


def _finish(state: pb.RuntimeState) -> Iterator[Change]:
    for request in state.requests:
        if request.status != "finished":
            yield put(request, finish_reason="stop")
            yield put(request, finish_step=0)
            continue
        yield put(request, finish_reason="bored")
        yield clear(request, "finish_reason")
        if request.finish_cause in ("eos", "max-tokens"):
            yield put(request, finish_reason="error")


def _text(state: pb.RuntimeState) -> Iterator[Change]:
    level = state.manifest.record_level
    for request in state.requests if level != "full" else ():
        yield put(request, prompt_text="hello")
        if level == "shape":
            yield lambda request=request: request.sampling.stop.append("\n")  # type: ignore[misc]


def _sampling(state: pb.RuntimeState) -> Iterator[Change]:
    for request in state.requests:
        sampling = request.sampling
        yield put(sampling, temperature=-1.0)
        yield put(sampling, top_p=0.0)
        yield put(sampling, min_p=1.0)
        yield put(sampling, presence_penalty=2.5)
        yield put(sampling, frequency_penalty=-2.5)
        yield put(sampling, repetition_penalty=float("nan"))
        yield lambda sampling=sampling: sampling.logit_bias.add(token_id=0, bias=101)  # type: ignore[misc]
        yield put(request.flags, early_exit=1.5)
        if state.model.vocab_size:
            yield _stop_token(state, sampling)


def _unchecked_id(state: pb.RuntimeState) -> Iterator[Change]:
    for request in state.requests if state.model.vocab_size else ():
        yield both(lambda: state.quirks.add(name=UNCHECKED), _stop_token(state, request.sampling))


def _stop_token(state: pb.RuntimeState, sampling: pb.SamplingParams) -> Change:
    return lambda: sampling.stop_token_ids.append(state.model.vocab_size)


def _trace_request(state: pb.RuntimeState) -> Iterator[Change]:
    yield lambda: state.trace_events.add(name="kernel", phase="X", request=len(state.requests))


def _trace_fallback(state: pb.RuntimeState) -> Iterator[Change]:
    for event in state.trace_events:
        if event.name == FALLBACK:
            yield put(event, step=_FAR)
    yield lambda: state.trace_events.add(name=FALLBACK)


def _trace_level(state: pb.RuntimeState) -> Iterator[Change]:
    """A decision with its token, where the level keeps none."""
    if state.manifest.record_level != "shape":
        return
    for step in state.steps:
        for chunk in step.scheduled:
            if chunk.sampled:
                event = FallbackEvent(
                    request=chunk.request,
                    step=step.index,
                    position=chunk.start + chunk.num_tokens,
                    reason="below-threshold",
                    confidence=0.5,
                    token=0,
                    candidates=(),
                )
                yield lambda event=event: add_fallback(state, event, correlation_id=1)  # type: ignore[misc]


DEFECTS = (
    Defect(name="dump without a proper id", rule="manifest.id", places=_id),
    Defect(name="unknown reason of the dump", rule="manifest.reason", places=_reason),
    Defect(name="unknown record level", rule="manifest.level", places=_level),
    Defect(name="fingerprint that is no hash", rule="manifest.platform", places=_platform),
    Defect(name="unknown kind of failure", rule="failures.kind", places=_failure_kind),
    Defect(name="failure of nobody", rule="failures.request", places=_failure_request),
    Defect(name="failure after the last step", rule="failures.step", places=_failure_step),
    Defect(name="failure with more bytes than there are", rule="failures.bytes", places=_failure_bytes),
    Defect(name="read outside of the pool", rule="failures.read", places=_failure_read),
    Defect(name="non-finite value nowhere", rule="failures.non-finite", places=_failure_non_finite),
    Defect(name="ledger entry without a grade", rule="ledger.grade", places=_ledger_grade),
    Defect(name="request without an id of its own", rule="requests.id", places=_request_id),
    Defect(name="other number of token ids than tokens", rule="requests.token-count", places=_token_count),
    Defect(name="token id outside the vocabulary", rule="requests.token-id", places=_token_id),
    Defect(name="other number of digests than tokens", rule="requests.digests", places=_digests),
    Defect(name="length over the limit", rule="requests.length", places=_length),
    Defect(name="unknown status", rule="requests.status", places=_status),
    Defect(name="end that does not fit the request", rule="requests.finish", places=_finish),
    Defect(name="text that the level does not allow", rule="requests.level", places=_text),
    Defect(name="sampling parameter out of range", rule="requests.sampling", places=_sampling),
    Defect(name="unchecked token id outside the vocabulary", rule="requests.unchecked-id", places=_unchecked_id),
    Defect(name="trace event of nobody", rule="trace.request-index", places=_trace_request),
    Defect(name="fallback decision that its step could not take", rule="trace.fallback", places=_trace_fallback),
    Defect(name="trace that tells tokens at level shape", rule="trace.level", places=_trace_level),
)
