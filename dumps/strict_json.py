"""JSON from a place that is not trusted: what the standard library lets through is refused here.

The stock decoder raises RecursionError on deep nesting, keeps the last of two equal keys, accepts NaN and Infinity,
turns 1e999 into infinity, and fails with its own error on integers above 4300 digits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

MAX_DEPTH = 64
MAX_INTEGER_DIGITS = 40  # every number we exchange fits in 64 bits; this leaves room for a good error further on

# A string with its escapes, or one bracket: brackets inside strings must not count. The closing quote is optional and
# the repeats give nothing back, so that a string without an end is passed once and not once per quote in it.
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


class InvalidJson(ValueError):
    """Bytes that are not strict JSON. Usually a client that writes NaN, or a cut message."""


def loads(
    data: bytes, *, max_depth: int = MAX_DEPTH, of_float: Callable[[float], float | int] = lambda value: value
) -> Any:
    """Decode one JSON document; ``of_float`` gives the value of each number with a fraction or an exponent.

    Raises InvalidJson for anything that is not RFC 8259, for a repeated key, a key with half a surrogate pair (an error
    message in UTF-8 could not name it), a number that is not finite or longer than MAX_INTEGER_DIGITS, and nesting
    below ``max_depth``.
    """
    _check_depth(data, max_depth)
    try:
        return json.loads(
            data.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_int=_parse_int,
            parse_float=lambda text: of_float(_parse_float(text)),
            object_pairs_hook=_unique,
        )
    except UnicodeDecodeError as error:
        raise InvalidJson(f"not UTF-8 at byte {error.start}") from error
    except InvalidJson:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"not JSON: {error}") from error


def _check_depth(data: bytes, max_depth: int) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        first = data[match.start()]
        if first in b"[{":
            depth += 1
            if depth > max_depth:
                raise InvalidJson(f"nested deeper than {max_depth} at byte {match.start()}")
        elif first in b"]}":
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidJson(f"{name} is not JSON")


def _parse_int(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise InvalidJson(f"an integer of {len(text)} digits")
    return int(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidJson(f"{text[:40]} is not a finite number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InvalidJson(f"key {key[:80]!r} stands twice in one object")
        if not key.isascii() and any("\ud800" <= character <= "\udfff" for character in key):
            raise InvalidJson(f"key {key[:80]!r} holds half of a surrogate pair")
        result[key] = value
    return result
