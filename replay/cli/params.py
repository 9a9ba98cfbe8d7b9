"""Option values that several commands read alike.

Callbacks and not types: click before 8.3 has no generic ParamType.
"""

from __future__ import annotations

import click

from replay.errors import UsageError
from replay.isolate.units import duration, size


def as_seconds(_ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds from ``5s``, ``500ms``, ``2m`` or a bare number of seconds."""
    try:
        return None if value is None else duration(value, name=param.opts[0])
    except UsageError as error:
        raise click.BadParameter(f"{error}; {error.remedy}") from error


def as_bytes(_ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Bytes from ``256MiB``, ``2GB`` or a bare number of bytes."""
    try:
        return None if value is None else size(value, name=param.opts[0])
    except UsageError as error:
        raise click.BadParameter(f"{error}; {error.remedy}") from error
