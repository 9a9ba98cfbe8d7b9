"""The owners of KV blocks over time, put into a dump by a server that checks its steps."""

from __future__ import annotations

from itertools import islice

from dumps.ledger import record
from dumps.schema import state_pb2 as pb
from replay.engine.ownership import BlockHistory

MOST = 4096
"""Events in a dump, the newest ones: about 50 KB."""


def put_history(history: BlockHistory, state: pb.RuntimeState) -> None:
    """Add the events to ``state.kv``. Requests that the dump does not hold leave theirs without one."""
    index = {request.id: number for number, request in enumerate(state.requests)}
    skipped = max(0, len(history) - MOST)
    for one in islice(history, skipped, None):
        event = state.kv.block_history.add(step=one.step, block=one.block, event=one.event)
        if one.request in index:
            event.request = index[one.request]
    lost = skipped + history.forgotten
    record(state, "kv.block_history", pb.OBSERVED, f"without {lost} older events" if lost else "")
