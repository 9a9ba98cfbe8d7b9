"""What a replay of a program is asked for, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dumps.schema import state_pb2 as pb
from replay import strict_json
from replay.errors import UsageError
from replay.runtime.tools import listed

TARGET = "app="
ANSWERS = ("replayed", "recorded")
_TOOL = "tool."
_RESULT = ".result"

# Options of other targets, with the value that asks for nothing.
_NEUTRAL: Mapping[str, Any] = {
    "mode": ("auto", "strict"),
    "scope": ("engine",),
    "kernels": ("exact",),
    "schedule": ("recorded",),
    "kv": ("auto",),
    "checks": ("on",),
    "window": (None,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    """``entry`` is "module:callable"; ``app_path`` are folders to import it from. ``tool_results`` are JSON texts by
    tool call id. ``handlers`` is "module:callable" of who answers what was not recorded, under ``fork`` only."""

    entry: str
    app_path: tuple[str, ...] = ()
    answers: Literal["replayed", "recorded"] = "replayed"
    tool_results: Mapping[str, str] = field(default_factory=dict)
    handlers: str = ""
    signature: str | None = None
    salvage: bool = False


def is_app(target: object) -> bool:
    return isinstance(target, str) and target.startswith(TARGET)


def app_options(job: Mapping[str, Any]) -> AppOptions:
    """Raises `UsageError` that names the option and what it wants."""
    target = str(job.get("target", ""))
    entry = target.removeprefix(TARGET)
    module, colon, attribute = entry.partition(":")
    if not (module and colon and attribute):
        raise UsageError(
            f"target: {target!r} names no callable",
            remedy="write it as --target app=MODULE:CALLABLE, as in app=agent:main",
        )
    for name, values in _NEUTRAL.items():
        if job.get(name, values[0]) not in values:
            raise UsageError(
                f"--{name} changes nothing in --target app, which runs your program", remedy="leave it out"
            )
    answers = job.get("answers", ANSWERS[0])
    if answers not in ANSWERS:
        raise UsageError(f"answers: wants {' or '.join(ANSWERS)}, got {answers!r}")
    for name, neutral in (("model", None), ("device", "auto")):
        if answers == "recorded" and job.get(name, neutral) != neutral:
            raise UsageError(f"--{name} changes nothing with --answers recorded: no model runs", remedy="leave it out")
    folders = job.get("app_path", ())
    if not isinstance(folders, list | tuple) or not all(isinstance(folder, str) for folder in folders):
        raise UsageError(f"app-path: wants folders, got {folders!r}")
    settings = job.get("set", {})
    if not isinstance(settings, Mapping):
        raise UsageError(f"set: wants an object of keys and values, got {settings!r}")
    return AppOptions(
        entry=entry,
        app_path=tuple(folders),
        answers=answers,
        tool_results={_tool_id(key): _json(key, value) for key, value in settings.items()},
        handlers=_handlers(job),
        signature=job.get("signature"),
        salvage=bool(job.get("salvage", False)),
    )


def check_tools(options: AppOptions, state: pb.RuntimeState) -> None:
    """Raises `UsageError`, with the ids there are, where a setting names a tool call that the dump does not have."""
    known = {call.id for call in state.tool_calls}
    for call_id in options.tool_results:
        if call_id not in known:
            raise UsageError(
                f"--set tool.{call_id}.result: the dump has no such tool call",
                remedy=f"it has {listed(state.tool_calls, call_id)}" if known else "it records no tool call",
            )


def _handlers(job: Mapping[str, Any]) -> str:
    fork, handlers = bool(job.get("fork", False)), str(job.get("handlers") or "")
    if fork and not handlers:
        raise UsageError(
            "--fork lets new code run past the recorded world, and nothing answers it there",
            remedy="name who does: --fork --handlers MODULE:FUNCTION; the function gets each unrecorded request",
        )
    if handlers and not fork:
        raise UsageError("--handlers answers what was not recorded, which takes --fork", remedy="add --fork")
    module, colon, function = handlers.partition(":")
    if handlers and not (module and colon and function):
        raise UsageError(f"handlers: {handlers!r} names no function", remedy="write it as --handlers MODULE:FUNCTION")
    return handlers


def _tool_id(key: str) -> str:
    call_id = key.removeprefix(_TOOL).removesuffix(_RESULT)
    if not (key.startswith(_TOOL) and key.endswith(_RESULT)) or len(key) <= len(_TOOL + _RESULT):
        raise UsageError(
            f"--set {key}: in --target app there is only tool.ID.result",
            remedy="write it as --set tool.tool-1.result='{\"celsius\": 21}'",
        )
    return call_id


def _json(key: str, value: Any) -> str:
    """The result as JSON: text as the command line gives it, or any JSON value of a client."""
    if not isinstance(value, str):
        return strict_json.dumps(value).decode()
    try:
        strict_json.loads(value.encode())
    except strict_json.InvalidJson as error:
        raise UsageError(f"--set {key}: wants JSON, got {value[:80]!r}: {error}") from error
    return value
