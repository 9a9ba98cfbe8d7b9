"""Option values that several commands read alike.

Callbacks and not types: click before 8.3 has no generic ParamType.
"""

from __future__ import annotations

import os
from typing import Any

import click

from replay.errors import UsageError
from replay.isolate.units import duration, size


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


def _bad(error: UsageError, param: click.Parameter) -> click.BadParameter:
    """click puts the option's name before the message by itself."""
    return click.BadParameter(f"{str(error).removeprefix(f'{param.opts[0]}: ')}; {error.remedy}")
