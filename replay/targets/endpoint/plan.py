"""What is sent to an endpoint and what is looked for there, as it goes from the process that opened the dump to the one
that has the network.

The first had an untrusted dump in its hands, so the second takes nothing from it but these fields: one of two paths,
JSON bodies, numbers, texts to compare. No address, no header and no key comes from a dump.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from replay.engine.failure import FailureKind
from replay.errors import ReplayError
from replay.signature import Signature
from replay.verdict import Reason

PATHS = ("/completions", "/chat/completions")
SILENCE_S = 120.0
"""Without a byte for so long, a request is given up. A slow server that still computes looks the same from outside."""


class BadPlan(ReplayError):
    """The worker that opened the dump sent something that is no plan."""

    remedy = "report this: the worker and this process do not agree on what is sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded answer. ``output_len`` is in tokens; ``text`` is None where the record holds none that could be
    read, and need not be whole."""

    id: str
    status: str = ""
    finish_reason: str = ""
    prompt_len: int | None = None
    output_len: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request. ``at_s`` counts from the first one.

    Exactly one of ``body`` and ``verbatim`` (JSON text) is set: what we wrote may be changed where a server refuses a
    part of it. ``asked`` is the limit of answer tokens, None for none; ``unlimited`` says that the client gave none and
    ``asked`` is one more than the recorded server could hold. ``text`` stands in for token ids. The client hung up
    ``abort_s`` after it had asked. ``recorded`` is by choice.
    """

    at_s: float
    path: str
    body: dict[str, Any] | None = None
    verbatim: str | None = None
    n: int = 1
    asked: int | None = None
    unlimited: bool = False
    text: str | None = None
    abort_s: float | None = None
    recorded: tuple[Recorded, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``kind`` is what to look for, None with the ``reason`` why nothing is. ``deadline_s`` is the time that an answer
    had when a timeout was recorded; ``silence_s`` how long nothing may come at all.

    ``head`` holds what the report takes over from the dump, ``findings`` what became known when it was read.
    """

    source: str
    kind: FailureKind | None = None
    reason: Reason = Reason.NONE
    expected: Signature | None = None
    model: str = ""
    calls: tuple[Call, ...] = ()
    deadline_s: float | None = None
    silence_s: float = SILENCE_S
    head: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "kind": self.kind.value if self.kind else None,
            "reason": self.reason.value,
            "expected": self.expected.to_json() if self.expected else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Raises `BadPlan`."""
        try:
            given = dict(data)
            return cls(
                source=_typed(given["source"], str),
                kind=FailureKind(given["kind"]) if given["kind"] else None,
                reason=Reason(given["reason"]),
                expected=Signature.from_json(given["expected"]) if given["expected"] else None,
                model=_typed(given["model"], str),
                calls=tuple(_call(one) for one in _typed(given["calls"], list)),
                deadline_s=_seconds(given["deadline_s"]),
                silence_s=_seconds(given["silence_s"]) or SILENCE_S,
                head=_typed(given["head"], dict),
                findings=tuple(_typed(one, dict) for one in _typed(given["findings"], list)),
            )
        except (KeyError, TypeError, ValueError, ReplayError) as error:
            raise BadPlan(f"not a plan: {type(error).__name__}: {error}") from error


def _call(data: Any) -> Call:
    given = _typed(data, dict)
    recorded = tuple(Recorded(**_typed(one, dict)) for one in _typed(given["recorded"], list))
    call = Call(**{**given, "recorded": recorded, "at_s": _seconds(given["at_s"]) or 0.0})
    if call.path not in PATHS:
        raise ValueError(f"the path {call.path!r:.80}")
    if (call.body is None) == (call.verbatim is None):
        raise ValueError("a request without a body, or with two")
    _typed(call.body if call.verbatim is None else call.verbatim, dict if call.verbatim is None else str)
    _seconds(call.abort_s)
    if type(call.n) is not int or call.n < 1 or not (call.asked is None or type(call.asked) is int):
        raise ValueError("a request with a wrong number")
    return call


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")
    return value


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r:.80} seconds")
    return float(value)
