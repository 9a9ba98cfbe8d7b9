"""Rules of the owners of KV blocks over time."""

from __future__ import annotations

from dumps.schema import state_pb2 as pb
from dumps.validate.finding import Finding, Findings

EVENTS = ("allocate", "share", "free", "evict")


def check_history(state: pb.RuntimeState) -> Findings:
    """All rules of ``state.kv.block_history``: events of this pool and these requests, in the order of steps."""
    kv, last = state.kv, 0
    for index, event in enumerate(kv.block_history):
        path = f"kv.block_history[{index}]"
        if event.event not in EVENTS:
            yield Finding("kv.history", f"{path}.event", f"not one of {', '.join(EVENTS)}")
        if event.block >= kv.num_blocks:
            yield Finding("kv.history", f"{path}.block", f"{event.block} is outside 0 to {kv.num_blocks - 1}")
        if event.HasField("request") and event.request >= len(state.requests):
            yield Finding("kv.history", f"{path}.request", f"there is no request {event.request}")
        if event.step < last:
            yield Finding("kv.history", f"{path}.step", f"step {event.step} after step {last}")
        last = max(last, event.step)
