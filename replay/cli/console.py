"""One way for output and errors, used by every command.

People's output and JSON go to stdout, everything else to stderr. Markup is off in these consoles, so a ``[bold]`` in a
dump is printed as it stands: use ``style=`` or `rich.text.Text`. Control characters are the caller's business: text
of a dump goes through `dumps.text.printable` first.

Commands are made with `command`, which turns every error into an exit code; see `replay.cli.failures`. A command that
ends with another code than 0 returns it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console

from replay.cli.ending import Ending, like_ctrl_c
from replay.cli.failures import EXIT_INTERRUPTED, Explanation, explain, format_traceback, write_traceback

F = TypeVar("F", bound=Callable[..., Any])

PIPE_WIDTH = 10_000  # nothing that a program reads is ever cut
HELP_WIDTH = 110
EXIT_BISECT_SKIP = 125
EXIT_PIPE_CLOSED = 141  # what a shell reports for a program that SIGPIPE ended


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # rich would exit with 1 here, which nobody could tell from a failure.
        raise BrokenPipeError(errno.EPIPE, "the reader of this output has gone")


def stdout() -> Console:
    """The console for people's output: colour only on a terminal; no wrapping and no escape codes in a pipe."""
    return _console(to_stderr=False)


def stderr() -> Console:
    """The console for progress, notes and errors."""
    return _console(to_stderr=True)


def _console(*, to_stderr: bool) -> Console:
    # Made anew each time: rich looks at the stream once, and tests swap it.
    terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
    columns = os.environ.get("COLUMNS", "")
    width = None if terminal else int(columns) if columns.isdecimal() and int(columns) > 0 else PIPE_WIDTH
    return _Console(stderr=to_stderr, markup=False, emoji=False, highlight=False, soft_wrap=not terminal, width=width)


def print_json(document: Any) -> None:
    """Exactly one JSON document on stdout. ASCII only, so it is safe on a terminal whatever text it holds."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def note(message: str) -> None:
    """One line for people on stderr."""
    stderr().print(message)


def json_option(function: F) -> F:
    """Adds ``--json``, which the command gets as ``as_json``."""
    option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout and nothing else.")
    return option(function)


def debug_level() -> int:
    """PPLX_DEBUG: 0 silent, 1 info, 2 debug, 3 trace. Anything else counts as 0."""
    value = os.environ.get("PPLX_DEBUG", "0")
    return int(value) if value in {"0", "1", "2", "3"} else 0


def fail(error: BaseException, *, as_json: bool = False, for_bisect: bool = False) -> NoReturn:
    """Report ``error`` and leave with its exit code: on stderr for people, as a document on stdout with ``as_json``.

    ``for_bisect`` replaces the code by the one that tells ``git bisect run`` to skip.
    """
    explanation = explain(error)
    if explanation.is_our_bug:
        explanation = _keep_traceback(explanation, error)
    with contextlib.suppress(OSError):  # where an output cannot be written, the exit code is all there is
        _print(explanation, error, as_json=as_json)
    _drop_unwritten()
    if for_bisect and not explanation.is_interrupt:
        # git takes 1 to 124 for "bad": a typo must not point at a commit.
        raise SystemExit(EXIT_BISECT_SKIP)
    raise SystemExit(explanation.exit_code)


def _print(explanation: Explanation, error: BaseException, *, as_json: bool) -> None:
    if as_json:
        try:
            print_json({"error": explanation.as_json()})
            return
        except OSError:
            pass
    _print_for_people(explanation, error)


def _drop_unwritten() -> None:
    """What an output could not take stays in its buffer, and the flush at exit would fail over it once more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _to_null(stream.fileno())


def _to_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _open_closed_outputs() -> None:
    """Started with an output closed (`>&-`), Python has None for it: what is written there then goes nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays open until the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _keep_traceback(explanation: Explanation, error: BaseException) -> Explanation:
    if debug_level() >= 2:
        stderr().print(format_traceback(error))
        return explanation.with_remedy("Please report it with the traceback above.")
    path = write_traceback(error)
    where = f"the traceback in {path}" if path else "what PPLX_DEBUG=2 shows"
    return explanation.with_remedy(f"Please report it with {where}.")


def _print_for_people(explanation: Explanation, error: BaseException) -> None:
    console = stderr()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        console.print(explanation.message)
        return
    if isinstance(error, click.UsageError) and error.ctx is not None:
        console.print(error.ctx.get_usage())
    if not explanation.is_interrupt:
        title = "error (this is our bug):" if explanation.is_our_bug else "error:"
        console.print(title, style="bold red", end=" ")
    console.print(explanation.message)
    if explanation.remedy:
        console.print(explanation.remedy)


class _Escaped(Exception):
    """Carries a command's error past click, which would take an EPIPE or an EOFError for its own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class _Reporting(click.Command):
    """Turns whatever leaves the outermost command into a report and an exit code. ``-h`` is help everywhere."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        names = {"help_option_names": ["-h", "--help"]}
        super().__init__(
            *args, **{**attributes, "context_settings": names | (attributes.get("context_settings") or {})}
        )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit, _Escaped):
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise _Escaped(error) from error

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        extra.setdefault("max_content_width", HELP_WIDTH)
        return super().make_context(info_name, args, parent, **extra)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, report and raise SystemExit. With ``standalone_mode=False`` return the result, or raise the error."""
        _open_closed_outputs()
        words = sys.argv[1:] if args is None else args
        as_json = "--json" in words
        ending = Ending()
        try:
            with like_ctrl_c() if standalone_mode else contextlib.nullcontext(ending) as ending:
                result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except (click.ClickException, click.Abort, KeyboardInterrupt, OSError, _Escaped) as caught:
            error = caught.error if isinstance(caught, _Escaped) else caught
            if not standalone_mode:
                raise error from None
            if isinstance(error, BrokenPipeError) and _reader_has_gone():
                raise SystemExit(EXIT_PIPE_CLOSED) from None
            fail(ending.error(error), as_json=as_json, for_bisect="--bisect" in words)
        if not standalone_mode:
            return result
        if result == EXIT_INTERRUPTED and ending.number:  # it told by itself what it had done until then
            result = 128 + ending.number
        raise SystemExit(result if isinstance(result, int) else 0)


def _reader_has_gone() -> bool:
    """Whether stdout is a pipe that nobody reads. If so it is sent to the null device, for the flush at exit."""
    try:
        descriptor = sys.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        gone = any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    except (OSError, ValueError, AttributeError):
        return False
    if gone:
        _to_null(descriptor)
    return gone


class Command(_Reporting):
    """A click command whose errors are reported in our one way."""


class Group(_Reporting, click.Group):
    """A click group whose errors are reported in our one way; commands made under it are `Command`."""

    command_class = Command


def command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """`click.command` that makes a `Command`."""
    return click.command(name, cls=Command, **attributes)


def group(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], Group]:
    """`click.group` that makes a `Group`."""
    return click.group(name, cls=Group, **attributes)
