"""Whether a dump is that of a program or of an engine, also where the part that says so is lost."""

from __future__ import annotations

from dumps.schema import state_pb2 as pb


def holds_a_program(state: pb.RuntimeState) -> bool:
    """Whether this is what a program's recording wrote. Of an engine's dump its model is written before all else."""
    return state.HasField("program") or not (
        state.HasField("model") or state.HasField("engine") or state.steps or state.requests
    )


def was_redacted(state: pb.RuntimeState) -> bool:
    """Whether a program's dump held what it was told, and this copy of it does not: `pplx-state redact --prompt`."""
    texts = ("exchanges[].chunks[].data", "exchanges[].request_body", "syscalls[].data", "program.arguments_json")
    return state.manifest.record_level != "full" and any(
        one.path in texts and one.what == "removed" for one in state.redactions
    )


def without_its_world(state: pb.RuntimeState, level: str) -> str:
    """Why a program's dump below level full cannot be replayed, in words."""
    if was_redacted(state):
        return "what the program was told was removed from this copy of its dump: it was redacted, with --prompt"
    return f"the program was recorded at level {level!r}, without what it was told"
