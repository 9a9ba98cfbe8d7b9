"""What a list of dumps shows of each. Runs in a worker: listing a folder opens every untrusted file in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump

Emit = Callable[[dict[str, Any]], None]

JOB_FUNCTION = "replay.server.describe:describe_dumps"
STAGE = "describe"
MAX_CHARS = 200
FACTS = ("id", "reason", "created_ns", "active_model", "record_level", "failure")


def describe_dumps(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """``job["paths"]`` described in order. Progress names the one being opened, so that a deadly one is known."""
    described = []
    for index, path in enumerate(job["paths"]):
        emit({"event": "progress", "stage": STAGE, "done": index, "total": len(job["paths"])})
        described.append(describe(Path(path)))
    return {"dumps": described}


def describe(path: Path) -> dict[str, Any]:
    """``id, reason, created_ns, active_model, record_level, failure, error``; ns times are strings.

    A file that cannot be opened has ``error`` (class, message, offset, remedy) and None for the rest.
    """
    try:
        with open_dump(path) as dump:
            return {**_facts(dump.state), "error": None}
    except DumpError as error:
        return unreadable(
            {
                "class": type(error).__name__,
                "message": _short(str(error)),
                "offset": error.offset,
                # The reader puts the path into it; a client knows names and ids.
                "remedy": error.remedy.replace(str(path), path.name),
            }
        )


def unreadable(error: dict[str, Any]) -> dict[str, Any]:
    """The description of a file that could not be opened."""
    return {**dict.fromkeys(FACTS), "error": error}


def _facts(state: pb.RuntimeState) -> dict[str, Any]:
    return {
        "id": _short(state.manifest.id),
        "reason": _short(state.manifest.reason),
        "created_ns": str(state.manifest.created_ns),
        "active_model": _short(state.active_model) if state.HasField("active_model") else None,
        "record_level": _short(state.manifest.record_level),
        # The last one is what a replay must show.
        "failure": _failure(state.failures[-1]) if state.failures else None,
    }


def _failure(failure: pb.Failure) -> dict[str, Any]:
    return {
        "kind": _short(failure.kind),
        "invariant": _short(failure.invariant),
        "exception_type": _short(failure.exception_type),
        "step": failure.step if failure.HasField("step") else None,
        "position": failure.position if failure.HasField("position") else None,
    }


def _short(text: str) -> str:
    """A list of many dumps must fit into one frame, whatever is in them."""
    return text[:MAX_CHARS]
