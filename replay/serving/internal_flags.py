"""The header X-PPLX-Internal-Flags: ``early-exit=0.8,fallback-trace=on``. Read strictly: a flag that is misread or
passed over would make an answer end where its sender did not ask for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from replay.engine.request import InternalFlags
from replay.openai_wire import ApiError, invalid

INTERNAL_FLAGS = "X-PPLX-Internal-Flags"
EARLY_EXIT, FALLBACK_TRACE = "early-exit", "fallback-trace"

_WANTS = {
    EARLY_EXIT: "wants a number above 0 and at most 1, such as early-exit=0.8",
    FALLBACK_TRACE: "wants on or off, such as fallback-trace=on",
}
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?|\.[0-9]{1,20}")
_SHOWN = 64  # characters of a client's own text in an error


def parse_flags(values: Iterable[str]) -> InternalFlags:
    """The flags of all headers of this name in one request. A header is a list of ``flag=value``, parted by commas.

    Raises:
        ApiError: 400 that names the flag and what it wants: unknown, repeated (also in two headers), without a value,
            or with one that is none of its own.
    """
    parsed: dict[str, Any] = {}
    for value in values:
        for item in value.split(","):
            name, equals, text = item.strip(" \t").partition("=")
            wants = _WANTS.get(name)
            if wants is None:
                known = " and ".join(_WANTS)
                raise _refusal(f"unknown flag {name[:_SHOWN]!a}; there are {known}", "unknown_parameter")
            if name in parsed:
                raise _refusal(f"'{name}' is given twice", "invalid_value")
            read = _value(name, text) if equals else None
            if read is None:
                raise _refusal(f"'{name}' {wants}, got {text[:_SHOWN]!a}", "invalid_value")
            parsed[name] = read
    return InternalFlags(early_exit=parsed.get(EARLY_EXIT), fallback_trace=parsed.get(FALLBACK_TRACE, False))


def _value(name: str, text: str) -> float | bool | None:
    """What a value says; None for one that the flag does not take."""
    if name == FALLBACK_TRACE:
        return {"on": True, "off": False}.get(text)
    number = float(text) if _NUMBER.fullmatch(text) else 0.0
    return number if 0.0 < number <= 1.0 else None


def _refusal(problem: str, code: str) -> ApiError:
    return invalid(f"Invalid header '{INTERNAL_FLAGS}': {problem}.", INTERNAL_FLAGS, code)
