"""The model requests of a recorded program, word for word, and which of the recorded answers failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dumps import strict_json
from dumps.record.seams.http_tap import GIVEN_UP
from dumps.schema import state_pb2 as pb
from replay.engine.failure import FailureKind
from replay.openai_wire import EventReader
from replay.runtime.network.model import asks_a_model
from replay.runtime.network.response import response_of
from replay.strict_json import dumps as as_json
from replay.targets.endpoint.plan import PATHS, Call, Recorded
from replay.targets.endpoint.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """How a recorded answer failed, as its client could see it. ``after_s`` is how long that had taken."""

    kind: FailureKind
    exchange_id: str
    message: str
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCalls:
    """``symptom`` is that of the last recorded answer that failed. ``other_wire`` counts requests to a model that are
    made on another wire than completions, or are no JSON object: they cannot be sent."""

    calls: list[Call]
    symptom: Symptom | None
    other_wire: int


def program_calls(state: pb.RuntimeState, model: str | None) -> ProgramCalls:
    """``model`` replaces the recorded name in each request; without one they are sent word for word."""
    asked = [exchange for exchange in state.exchanges if exchange.direction == "out" and asks_a_model(exchange)]
    first = min((exchange.started_ns for exchange in asked), default=0)
    calls: list[Call] = []
    symptom: Symptom | None = None
    other = 0
    for exchange in sorted(asked, key=lambda one: one.started_ns):
        path, body = _path(exchange), _object(exchange.request_body)
        if path is None or body is None:
            other += 1
            continue
        reply = _reply(exchange)
        limit, n = _count(body, "max_completion_tokens", "max_tokens"), _count(body, "n") or 1
        call = Call(
            at_s=(exchange.started_ns - first) / 1e9,
            path=path,
            verbatim=as_json({**body, "model": model}).decode() if model else exchange.request_body.decode(),
            n=n,
            asked=limit,
            abort_s=_length_s(state, exchange) if exchange.error_message == GIVEN_UP else None,
            recorded=tuple(_recorded(exchange, reply, index, n) for index in range(n)),
        )
        calls.append(call)
        symptom = _symptom(state, exchange, reply, call) or symptom
    return ProgramCalls(calls=calls, symptom=symptom, other_wire=other)


def _path(exchange: pb.Exchange) -> str | None:
    path = urlsplit(exchange.url).path.rstrip("/")
    # The longer one first: it ends in the shorter one.
    return next((known for known in sorted(PATHS, key=len, reverse=True) if path.endswith(known)), None)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        body = strict_json.loads(data)
    except strict_json.InvalidJson:
        return None
    return body if isinstance(body, dict) else None


def _count(body: Mapping[str, Any], *names: str) -> int | None:
    return next((value for name in names if type(value := body.get(name)) is int and value > 0), None)


def _reply(exchange: pb.Exchange) -> Reply:
    """What the recorded answer said, as far as it came and can be read."""
    reply, body = Reply(), response_of(exchange).body
    if (document := _object(body)) is not None:
        reply.take(document)
        return reply
    try:
        for event in EventReader().feed(body):
            reply.take(event)
    except (ValueError, RecursionError):
        pass  # an event that is no JSON ends what can be read
    return reply


def _recorded(exchange: pb.Exchange, reply: Reply, index: int, n: int) -> Recorded:
    said = reply.choices.get(index)
    return Recorded(
        id=exchange.id if n == 1 else f"{exchange.id}#{index}",
        status=exchange.error or (str(exchange.status) if exchange.status else ""),
        finish_reason=said.finish_reason if said else "",
        output_len=reply.tokens(index),
        text=said.text if said else None,
    )


def _symptom(state: pb.RuntimeState, exchange: pb.Exchange, reply: Reply, call: Call) -> Symptom | None:
    def failed(kind: FailureKind, message: str) -> Symptom:
        return Symptom(kind=kind, exchange_id=exchange.id, message=message, after_s=_length_s(state, exchange))

    if exchange.error_message == GIVEN_UP:
        return None
    if exchange.error == "timeout" or not exchange.HasField("ended_ns"):
        return failed(FailureKind.TIMEOUT, exchange.error_message or "the answer had not come")
    if exchange.error in ("reset", "closed"):
        return failed(FailureKind.EXCEPTION, exchange.error_message or exchange.error)
    if exchange.status in (408, 504):
        return failed(FailureKind.TIMEOUT, reply.error.message if reply.error else f"HTTP {exchange.status}")
    if exchange.status >= 500 or (reply.error is not None and exchange.status < 400):
        return failed(FailureKind.EXCEPTION, reply.error.message if reply.error else f"HTTP {exchange.status}")
    if _cut(reply, call):
        return failed(FailureKind.SILENT_TRUNCATION, "the answer was cut")
    return None


def _cut(reply: Reply, call: Call) -> bool:
    return any(reply.is_cut(index, call.asked) for index in reply.choices)


def _length_s(state: pb.RuntimeState, exchange: pb.Exchange) -> float:
    """How long it took, or had taken when the dump was made."""
    ends: Sequence[int] = [failure.time_ns for failure in state.failures]
    end = exchange.ended_ns if exchange.HasField("ended_ns") else max(ends, default=0)
    return max(0.0, (end - exchange.started_ns) / 1e9)
