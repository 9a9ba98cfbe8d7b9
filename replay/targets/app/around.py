"""What was around the failure of a replayed program: what it was in the middle of, and what it waited for in vain.

All of it is seen in the replay; nothing is taken from the dump's own words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dumps.record.stacks import capture_exception
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.runtime.context import ContextFrame
from replay.runtime.env import Env
from replay.runtime.tools import OverdueCall

MAX_PAYLOAD = 4000  # characters of one payload, as JSON
MAX_FRAMES = 20
MAX_CALLS = 20

NOTHING_KNOWN: Mapping[str, Any] = {"context": [], "overdue": []}


def around(env: Env, error: BaseException | None) -> dict[str, Any]:
    """For a report: ``context``, the frames (`dumps.record.seams.context`) in which ``error`` was raised, innermost
    first; ``overdue``, the tool calls that a deadline ended, with their unanswered requests and the stack that waited.

    Both are empty where nothing is known. Messages of the conversation are left out: the dump has them.
    """
    if error is None:
        return dict(NOTHING_KNOWN)
    frames = env.context.replayed(error)[::-1][:MAX_FRAMES]
    return {
        "context": [_frame(one) for one in frames],
        "overdue": [_overdue(one, env.network.unanswered()) for one in env.tools.overdue()[-MAX_CALLS:]],
    }


def _frame(frame: ContextFrame) -> dict[str, Any]:
    text = json.dumps(frame.payload)
    payload = frame.payload if len(text) <= MAX_PAYLOAD else f"{text[:MAX_PAYLOAD]} (+{len(text) - MAX_PAYLOAD})"
    return {"kind": frame.kind, "payload": payload, "last_message_id": frame.last_message_id}


def _overdue(overdue: OverdueCall, unanswered: Iterable[pb.Exchange]) -> dict[str, Any]:
    call = overdue.call
    meant = [one for one in unanswered if one.task == call.task and overdue.started_ns <= one.sent_ns]
    return {
        "call": call.id,
        "tool": call.name,
        "deadline_s": overdue.deadline_s,
        "waited_s": round((overdue.ended_ns - overdue.started_ns) / 1e9, 3),
        "requests": [f"{one.id} {one.method} {printable(one.url, 200)}" for one in meant],
        "stack": _stack(overdue.error),
    }


def _stack(error: TimeoutError) -> list[dict[str, Any]]:
    """The program's own frames, innermost first: where it waited is in the cancellation that the deadline made of it,
    and what had called that in the timeout itself."""
    frames = [frame for one in capture_exception(error) for frame in one.frames if frame.in_app]
    places = dict.fromkeys((f"{frame.filename}:{frame.function}", frame.line) for frame in frames)
    return [{"frame": frame, "line": line} for frame, line in places]
