"""Which tasks of a replay could be the one in which the recorded program failed, and which could not.

A task that was cancelled in the middle of a tool call did not fail: another one did, and took it along. A task of the
replay is that of the record whose requests it asked, all of them and no others'; it may be counted otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dumps.schema import state_pb2 as pb
from replay.runtime.env import Refusal

_CANCELLED = "asyncio.exceptions.CancelledError"
_OUT_OF_TIME = ("TimeoutError", "CancelledError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Names of tasks and threads in the replay. ``possible``: those that may have failed. ``cleared``: those that did
    not, and that are where they were then. ``names`` are those of the stacks at the refusal, in their order."""

    possible: frozenset[str]
    cleared: frozenset[str]
    names: tuple[str, ...]


def suspects(state: pb.RuntimeState, first: Refusal, asked_by: Mapping[str, str]) -> Suspects | None:
    """Those of a program that was refused ``first``; None where it is not known which is which.

    ``asked_by`` is who asked for each recorded exchange in the replay.
    """
    requests = [one for one in state.exchanges if one.direction == "out"]
    pairs = {(one.task, asked_by.get(one.id, "")) for one in requests}
    now = dict(pairs)
    if len(now) < len(pairs) or len(set(now.values())) < len(pairs):
        return None
    if any(one.type.endswith(_OUT_OF_TIME) for one in state.exceptions):
        return None  # a deadline cancels the task that fails
    inside = {one.task for one in state.tool_calls if one.status == "pending" or one.error_type == _CANCELLED}
    still_inside = {one.task for one in first.standpoint.tool_calls}
    stacks = first.standpoint.stacks
    return Suspects(
        possible=frozenset(now.values()) - frozenset(now[one] for one in inside if one in now),
        cleared=frozenset(now[one] for one in inside & still_inside if one in now),
        names=(first.task, *(stack.name for stack in stacks[1:])),  # the first stack is that of who asked
    )
