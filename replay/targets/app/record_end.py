"""What a program that asks for something new had not come to by then: ends that were recorded, and a failure."""

from __future__ import annotations

from dumps.record.secrets import scrub_text
from dumps.record.stacks import top_in_app_frame
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.engine.failure import FailureKind
from replay.runtime.env import Refusal
from replay.runtime.standpoint import Standpoint
from replay.signature import Identity, Location, Signature, normalise


def what_was_to_end(state: pb.RuntimeState, standpoint: Standpoint) -> str:
    """The recorded calls that are under way at ``standpoint``, and had ended when the program failed, in words."""
    failed_ns = state.failures[-1].time_ns if state.failures else 0
    found = [
        f"{one.id} {one.method} {printable(one.url, 200)}"
        for one in standpoint.exchanges
        if one.HasField("ended_ns") and one.ended_ns <= failed_ns
    ]
    found += [
        f"tool call {printable(one.id, 80)} ({printable(one.name, 80)})"
        for one in standpoint.tool_calls
        if one.status == "finished" and one.finished_ns <= failed_ns
    ]
    return ", ".join(found[:5])


def seen_before(expected: Signature, refusal: Refusal) -> Signature | None:
    """The expected failure, where the program was handling it already when it was refused something."""
    for one in refusal.standpoint.handled:
        identity = Identity(
            kind=FailureKind.EXCEPTION.value,
            exception_type=one.type,
            message=normalise(scrub_text(one.message)),
            frame=top_in_app_frame(one) or "",
        )
        if identity == expected.identity:
            return Signature(identity, Location(step=refusal.step))
    return None
