"""Options that several commands have, and option values that they read alike.

Values have callbacks and not types: click before 8.3 has no generic ParamType.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from replay.errors import UsageError
from replay.isolate.units import duration, size
from replay.targets.app.options import ANSWERS

F = TypeVar("F", bound=Callable[..., Any])


def as_seconds(_ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds from ``5s``, ``500ms``, ``2m`` or a bare number of seconds."""
    try:
        return None if value is None else duration(value, name=param.opts[0])
    except UsageError as error:
        raise _bad(error, param) from error


def as_bytes(_ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Bytes from ``256MiB``, ``2GB`` or a bare number of bytes."""
    try:
        return None if value is None else size(value, name=param.opts[0])
    except UsageError as error:
        raise _bad(error, param) from error


def make_absolute(job: dict[str, Any], *names: str) -> None:
    """Paths as they are here: a worker stands in a folder of its own."""
    for name in names:
        if job.get(name):
            job[name] = os.path.abspath(job[name])


def budget_option(name: str, *, default: str | None, help: str, shown: str = "") -> Callable[[F], F]:
    """A duration, given to the command in seconds. ``shown`` says what no value means."""
    return click.option(
        name,
        callback=as_seconds,
        default=default,
        show_default=default is not None,
        metavar="DURATION",
        help=f"{help}  [default: {shown}]" if shown else help,
    )


def load_timeout_option(function: F) -> F:
    """Adds ``--load-timeout``."""
    return budget_option("--load-timeout", default="120s", help="Budget for loading.")(function)


def program_options(function: F) -> F:
    """Adds ``--app-path`` and ``--answers``, for a replay of a program."""
    path = click.option(
        "--app-path",
        multiple=True,
        type=click.Path(exists=True, file_okay=False),
        help="Folder to import the program from; may be repeated.  [default: the current one]",
    )
    answers = click.option(
        "--answers",
        type=click.Choice(ANSWERS),
        default=ANSWERS[0],
        show_default=True,
        help="A program's model: computed again where its weights are here, or the recorded answers.",
    )
    return path(answers(function))


def model_option(function: F) -> F:
    """Adds ``--model``."""
    return click.option(
        "--model",
        type=click.Path(path_type=Path),
        help="Folder of safetensors or a .gguf file.  [default: by fingerprint]",
    )(function)


def device_option(function: F) -> F:
    """Adds ``--device``."""
    return click.option(
        "--device",
        type=click.Choice(("auto", "cpu", "cuda")),
        default="auto",
        show_default=True,
        help="Where to run the model.",
    )(function)


def _bad(error: UsageError, param: click.Parameter) -> click.BadParameter:
    """click puts the option's name before the message by itself."""
    return click.BadParameter(f"{str(error).removeprefix(f'{param.opts[0]}: ')}; {error.remedy}")
