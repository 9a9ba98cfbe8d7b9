"""The one grammar of paths into a state: ``requests[3].sampling.seed``, ``failures[-1].message``, ``requests[].id``.

A path is field names joined by dots. ``[n]`` picks an element of a list, counted from its end when negative; ``[]``
means every element, which a ledger entry or a redaction may say and a look-up may not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from dumps.errors import UnknownPath

_STEP = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[(-?[0-9]{0,9})\])?")

MAX_PATH = 500


def parse(path: str) -> tuple[str | int | None, ...]:
    """The steps of ``path``: names, indices, and None for ``[]``. Raises `UnknownPath` when it is not a path."""
    steps: list[str | int | None] = []
    for part in path[: MAX_PATH + 1].split("."):
        match = _STEP.fullmatch(part)
        if match is None or match[2] == "-" or len(path) > MAX_PATH:
            raise UnknownPath(
                f"{path[:80]!r} is not a path",
                remedy="Write it as in requests[0].sampling.seed or failures[-1].message.",
            )
        steps.append(match[1])
        if match[2] is not None:
            steps.append(int(match[2]) if match[2] else None)
    return tuple(steps)


def pattern(path: str) -> str:
    """``path`` with every index replaced by ``[]``: ``requests[3].id`` becomes ``requests[].id``."""
    return re.sub(r"\[-?[0-9]+\]", "[]", path)


def look_up(message: Message, path: str) -> Any:
    """The value at ``path``: a scalar, a message or a repeated container. None for an optional field that is not set.

    Raises `UnknownPath`, with the nearest names, for a field or an element that is not there.
    """
    value: Any = message
    done = ""
    for step in parse(path):
        if isinstance(step, str):
            value = _field(value, step, done)
            done = f"{done}.{step}" if done else step
        elif not _is_list(value):
            raise UnknownPath(f"{done} is not a list", remedy=f"Ask for {done}.")
        elif step is None:
            raise UnknownPath(f"{done}[] names every element", remedy=f"Ask for {done}, or for one: {done}[0].")
        elif not -len(value) <= step < len(value):
            raise UnknownPath(f"{done} has {len(value)} elements, there is no [{step}]", remedy=f"Ask for {done}.")
        else:
            value = value[step]
            done = f"{done}[{step}]"
    return value


def _field(value: Any, name: str, done: str) -> Any:
    if _is_list(value):
        raise UnknownPath(f"{done} is a list of {len(value)}", remedy=f"Pick one element: {done}[0].{name}")
    if not isinstance(value, Message):
        raise UnknownPath(f"{done} has no fields", remedy=f"Ask for {done}.")
    fields: dict[str, FieldDescriptor] = cast(Any, value.DESCRIPTOR).fields_by_name
    if name not in fields:
        near = _inside(fields, name) or difflib.get_close_matches(name, fields, n=3, cutoff=0.5)
        prefix = f"{done}." if done else ""
        shown = ", ".join(prefix + one for one in near or fields)
        raise UnknownPath(
            f"{done or 'a dump'} has no field {name!r}",
            remedy=f"Did you mean {shown}?" if near else f"There are: {shown}",
        )
    if fields[name].has_presence and not value.HasField(name):
        return None
    return getattr(value, name)


def _inside(fields: Mapping[str, FieldDescriptor], name: str) -> list[str]:
    """Paths of fields that are called ``name`` in a single message among ``fields``."""
    return [
        f"{field.name}.{name}"
        for field in fields.values()
        if field.message_type is not None
        and not field.is_repeated
        and name in cast(Any, field.message_type).fields_by_name
    ][:3]


def _is_list(value: Any) -> bool:
    return value is not None and not isinstance(value, (Message, str, bytes, int, float))
