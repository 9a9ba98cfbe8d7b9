"""Whether a dump is that of a program or of an engine, also where the part that says so is lost."""

from __future__ import annotations

from dumps.schema import state_pb2 as pb


def holds_a_program(state: pb.RuntimeState) -> bool:
    """Whether this is what a program's recording wrote. Of an engine's dump its model is written before all else."""
    return state.HasField("program") or not (
        state.HasField("model") or state.HasField("engine") or state.steps or state.requests
    )
