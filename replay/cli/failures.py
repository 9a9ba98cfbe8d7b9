"""What a command says about an error, and the code it exits with."""

from __future__ import annotations

import errno
import os
import tempfile
import traceback
from dataclasses import dataclass, replace

import click

from dumps.errors import DumpError
from dumps.text import printable
from replay.cli.ending import Terminated
from replay.errors import ENGINE_PACKAGES, EngineNotInstalled, ReplayError

EXIT_USAGE = 2
EXIT_BAD_DUMP = 4
EXIT_INCONCLUSIVE = 20
EXIT_OUR_ERROR = 70
EXIT_INTERRUPTED = 130
INTERRUPTED = "Interrupted"

MAX_LINES = 60
MAX_LINE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An error for people: its text is already safe to print."""

    kind: str
    message: str
    remedy: str = ""
    exit_code: int = EXIT_OUR_ERROR
    is_our_bug: bool = False

    @property
    def is_interrupt(self) -> bool:
        return self.kind == INTERRUPTED

    def as_json(self) -> dict[str, str | int]:
        return {"class": self.kind, "message": self.message, "remedy": self.remedy, "exit_code": self.exit_code}

    def with_remedy(self, remedy: str) -> Explanation:
        return replace(self, remedy=remedy)


def explain(error: BaseException) -> Explanation:
    """The explanation of anything that can leave a command. What no branch knows is our own bug."""
    kind = type(error).__name__
    match error:
        case click.ClickException():
            return Explanation(
                kind="UsageError",
                message=safe(error.format_message()),
                exit_code=EXIT_USAGE,
                remedy=_usage_remedy(error),
            )
        case DumpError():
            return Explanation(kind=kind, message=safe(str(error)), remedy=safe(error.remedy), exit_code=EXIT_BAD_DUMP)
        case ReplayError():
            return Explanation(
                kind=kind, message=safe(str(error)), remedy=safe(error.remedy), exit_code=error.exit_code
            )
        case Terminated():
            return Explanation(kind=INTERRUPTED, message=str(error), exit_code=error.exit_code)
        case KeyboardInterrupt() | click.Abort():
            return Explanation(kind=INTERRUPTED, message="interrupted", exit_code=EXIT_INTERRUPTED)
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] in ENGINE_PACKAGES:
            missing = EngineNotInstalled(f"this needs {name.partition('.')[0]}, which is not installed")
            return explain(missing)
        case OSError(filename=str(path), strerror=str(reason)):
            return Explanation(
                kind=kind,
                message=safe(f"{os.path.abspath(path)}: {reason}"),
                remedy="Check the path and what you may do there, or choose another one.",
                exit_code=EXIT_USAGE,
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG | errno.EIO, strerror=str(reason)):
            return Explanation(kind=kind, message=safe(f"cannot write: {reason}"), remedy="Make room and run it again.")
        case _:
            return Explanation(kind=kind, message=safe(f"{kind}: {error}"), is_our_bug=True)


def _usage_remedy(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"Try '{context.command_path} --help'." if isinstance(context, click.Context) else ""


def safe(text: str) -> str:
    """Text of unknown origin, line by line, without anything a terminal would act on."""
    lines = text.splitlines()
    kept = [printable(line, MAX_LINE) for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        kept.append(f"... {len(lines) - MAX_LINES} more lines")
    return "\n".join(kept)


def format_traceback(error: BaseException) -> str:
    return "\n".join(printable(line, MAX_LINE) for line in "".join(traceback.format_exception(error)).splitlines())


def write_traceback(error: BaseException) -> str | None:
    """Write the traceback to a new file (0600) in the temporary folder. None where that fails, too."""
    try:
        handle, path = tempfile.mkstemp(prefix="pplx-traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(format_traceback(error) + "\n")
    except OSError:
        return None
    return path
