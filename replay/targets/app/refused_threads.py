"""Whether the recorded failure came back only since another thread did what a refused one had done in the record.

A thread that blocks, or sleeps, is refused (`SyncClientInThread`, `VirtualTimeInThread`). What it had been told is
still there, and whoever asks for it next gets it. The same line then fails in a thread in which it never failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dumps.record.stacks import capture_exception
from dumps.schema import state_pb2 as pb
from replay.runtime.clock import VirtualTimeInThread
from replay.runtime.env import Refusal
from replay.runtime.errors import RuntimeReplayError, SyncClientInThread

_REFUSED = (SyncClientInThread, VirtualTimeInThread)
_POOL = ("concurrent/futures/thread.py", "_WorkItem.run")
_NUMBER = re.compile(r"\d+")


def calls_left(state: pb.RuntimeState, refusals: Sequence[Refusal], left: Sequence[pb.Exchange]) -> int:
    """How many of the exchanges ``left`` over the refused threads had asked for when the recorded program failed."""
    refused = {_kind(one.task) for one in refusals if isinstance(one.error, _REFUSED)}
    failed_ns = state.failures[-1].time_ns if state.failures else 0
    return sum(_kind(one.task) in refused and one.started_ns <= failed_ns for one in left)


def stood_in_for(
    state: pb.RuntimeState, refusals: Sequence[Refusal], asked_by: Mapping[str, str], error: BaseException | None
) -> RuntimeReplayError | None:
    """The refusal of a thread whose recorded exchanges another one asked for, or out of which the failure of ``state``
    came; None where no refused thread has to do with it.

    ``asked_by`` is who asked for each recorded exchange in the replay, ``error`` what failed there.
    """
    refused = {_kind(one.task): one.error for one in reversed(refusals) if isinstance(one.error, _REFUSED)}
    if not refused:
        return None
    for exchange in state.exchanges:
        who = _kind(exchange.task)
        if who in refused and who != _kind(asked_by.get(exchange.id, exchange.task)):
            return refused[who]
    failing = next((one for one in state.threads if one.current), None)
    if failing is not None and _kind(failing.name) in refused:
        return refused[_kind(failing.name)]
    if _of_a_pool(state.exceptions) and not (error is not None and _of_a_pool(capture_exception(error))):
        return next(iter(refused.values()))  # which of them it was, the record does not say
    return None


def _kind(name: str) -> str:
    """A thread's name without what is counted in it: the same thread has another number in another process."""
    return _NUMBER.sub("#", name)


def _of_a_pool(exceptions: Sequence[pb.ExceptionInfo]) -> bool:
    """Whether the last of them passed from a worker of a pool to the one that waited for it."""
    return bool(exceptions) and any((frame.filename, frame.function) == _POOL for frame in exceptions[-1].frames)
