"""The active context stack as a file of its own, small enough to read at three in the morning."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dumps.schema import state_pb2 as pb

MAX_TRIES = 100
MAX_TOOLS = 200  # tool states, the latest


def snapshot_of(state: pb.RuntimeState) -> dict[str, Any]:
    """What the program was in the middle of: innermost frame first, messages in their order, the tool calls, and those
    of them whose responses are missing, the latest first.

    ``stack_depth`` counts frames, ``last_message_id`` is the innermost that has one.
    """
    frames = list(state.context_stack)[::-1]
    now_ns = state.manifest.created_ns - state.manifest.wall_minus_monotonic_ns
    parsed = [_frame(frame) for frame in frames]
    return {
        "dump": state.manifest.id,
        "reason": state.manifest.reason,
        "stack_depth": frames[0].stack_depth if frames else 0,
        "last_message_id": next((frame.last_message_id for frame in frames if frame.last_message_id), ""),
        "messages": [message for frame in reversed(parsed) for message in frame["messages"]],
        "tools": Counter(call.status for call in state.tool_calls),
        "tool_states": [_tool(call) for call in state.tool_calls[-MAX_TOOLS:]],
        "pending_function_responses": [
            _tool(call) | _waiting(call, now_ns)
            for call in reversed(state.tool_calls)
            if call.status in ("pending", "partial")
        ],
        "stack": parsed,
    }


def write_snapshot(folder: Path, state: pb.RuntimeState) -> Path:
    """Write it as ``context-snapshot-YYYYMMDD-HHMMSS.json`` (UTC, mode 0600) and return where.

    A second one within the same second gets ``-2``. Raises OSError.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(state.manifest.created_ns / 1e9))
    text = json.dumps(snapshot_of(state), indent=2, ensure_ascii=False) + "\n"
    for number in range(1, MAX_TRIES + 1):
        path = folder / f"context-snapshot-{stamp}{'' if number == 1 else f'-{number}'}.json"
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return path
    raise FileExistsError(f"{MAX_TRIES} snapshots of one second are in {folder}")


def _frame(frame: pb.ContextFrame) -> dict[str, Any]:
    try:
        content = json.loads(frame.payload_json or "{}")
    except ValueError:  # cut at its limit
        content = {"payload": frame.payload_json}
    return {
        "stack_depth": frame.stack_depth,
        "kind": frame.kind,
        "last_message_id": frame.last_message_id,
        "payload": content.get("payload", {}),
        "messages": content.get("messages", []),
    }


def _tool(call: pb.ToolCall) -> dict[str, Any]:
    shown = {"id": call.id, "name": call.name, "status": call.status}
    return shown | ({"error": call.error_type} if call.error_type else {})


def _waiting(call: pb.ToolCall, now_ns: int) -> dict[str, Any]:
    """``arguments`` is JSON as text, cut where they were still arriving; times are seconds from the call's start."""
    deadline = call.deadline_ns - call.started_ns if call.HasField("deadline_ns") else None
    return {
        "arguments": call.arguments_json,
        "waiting_s": round((now_ns - call.started_ns) / 1e9, 3),
        "deadline_s": None if deadline is None else round(deadline / 1e9, 3),
    }
