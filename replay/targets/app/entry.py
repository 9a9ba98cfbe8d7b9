"""The program that a replay runs: what its user named, found and called."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from dumps.schema import state_pb2 as pb
from replay.errors import UsageError

MAX_EVIDENCE = 8000  # characters


class ProgramNotLoaded(UsageError):
    """The program's module raises while it is imported. ``evidence`` is its traceback."""

    def __init__(self, message: str, *, remedy: str, evidence: str) -> None:
        super().__init__(message, remedy=remedy)
        self.evidence = evidence


def load_entry(spec: str, folders: Sequence[str], option: str = "target") -> Callable[..., Any]:
    """The object that ``spec`` ("module:callable") names, with ``folders`` first on the import path.

    A dump never decides this: only what its user wrote is imported. Raises `UsageError` that names ``option``, and
    `ProgramNotLoaded`.
    """
    how = _how(option)
    name, colon, attribute = spec.partition(":")
    if not (name and colon and attribute):
        raise UsageError(f"{option}: {spec!r} names no callable", remedy=how)
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    found = _imported(name, option)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{option}: {name} has no {attribute}", remedy=_nearest(part, found) or how)
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{option}: {spec} is {type(found).__name__}, which cannot be called", remedy=how)
    return found  # type: ignore[no-any-return]


def _how(option: str) -> str:
    wanted = "app=MODULE:CALLABLE" if option == "target" else "MODULE:FUNCTION"
    return f"write it as --{option} {wanted}, where MODULE can be imported, or name its folder with --app-path"


def _imported(name: str, option: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"{option}: there is no module {name}", remedy=_how(option)) from error
        raise UsageError(
            f"{option}: {name} needs the module {error.name}, which is not installed here",
            remedy="replay in the environment that the program runs in; where the module lies in a folder that the "
            "program puts on sys.path itself, name that with --app-path, too",
        ) from error
    except BaseException as error:  # SystemExit too: a script without its `if __name__ == "__main__"`
        what = f": {error}" if str(error) else ""
        raise ProgramNotLoaded(
            f"{option}: importing {name} raises {type(error).__name__}{what}",
            remedy="a module is imported before its recorded world is there; what runs the program belongs into it",
            evidence=_traceback(error),
        ) from error


def _traceback(error: BaseException) -> str:
    """From the program's own first frame on: how we and the import system came there tells nobody anything."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")
        or trace.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
    ):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))[-MAX_EVIDENCE:]


def _nearest(part: str, holder: Any) -> str:
    known = [name for name in dir(holder) if not name.startswith("_") and callable(getattr(holder, name, None))]
    near = difflib.get_close_matches(part, known, n=3, cutoff=0.5) or known[:8]
    return f"it has {', '.join(near)}" if near else ""


def arguments_of(program: pb.Program, function: Callable[..., Any]) -> dict[str, Any]:
    """The recorded keyword arguments. Raises `UsageError` where they do not fit ``function``."""
    arguments = json.loads(program.arguments_json) if program.arguments_json else {}
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"target: the recorded arguments ({', '.join(arguments) or 'none'}) do not fit: {error}",
            remedy="name the callable that was recorded, or one that takes the same arguments; for a method, write a "
            "function that makes its object",
        ) from error
    except ValueError:  # a builtin without a signature: calling it will tell
        pass
    return arguments


def defaults_used(program: pb.Program, function: Callable[..., Any]) -> bool:
    """Whether ``function`` has defaults, and the recording does not say what the program was called with."""
    if program.arguments_json:  # "{}" where it was called without any
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
        return any(one.default is not one.empty for one in parameters)
    except ValueError:
        return False


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call it, and run what it returns to its end where that is a coroutine."""
    result = function(**arguments)
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    return result
