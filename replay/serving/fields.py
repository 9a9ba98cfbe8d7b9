"""Typed reads of a JSON request body. Every refusal names the parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from replay import strict_json
from replay.openai_wire import invalid


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in a body. Two readers of a repeated key may see two requests, so there is no right one.

    Raises:
        ApiError: 400, what is wrong with it.
    """
    try:
        body = strict_json.loads(data)
    except strict_json.InvalidJson as error:
        raise invalid(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise invalid("The request body must be a JSON object.", code="invalid_json")
    return body


class Fields:
    """Reads parameters of one body. ``null`` counts as absent, as in the OpenAI API."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def integer(self, name: str, default: int) -> int:
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(name, value, "an integer")
        if not -(2**63) <= value < 2**64:
            raise invalid(f"Invalid '{name}': the integer does not fit in 64 bits.", name, "integer_out_of_range")
        return value

    def number(self, name: str, default: float) -> float:
        value = self._body.get(name)
        if value is None:
            return default
        return as_number(name, value)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(name, value, "a boolean")
        return value

    def string(self, name: str) -> str:
        """A string that must be there."""
        value = self._body.get(name)
        if value is None:
            raise invalid(f"Missing required parameter: '{name}'.", name, "missing_required_parameter")
        return as_text(name, value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._body.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise wrong_type(name, value, "an object")
        return value

    def strings(self, name: str, most: int) -> tuple[str, ...]:
        """One string or a list of up to ``most`` of them. Empty strings are refused: they would match at once."""
        value = self._body.get(name)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        if len(values) > most:
            raise invalid(f"Invalid '{name}': at most {most} entries, got {len(values)}.", name, "array_too_long")
        texts = tuple(as_text(name, text) for text in values)
        if "" in texts:
            raise invalid(f"Invalid '{name}': an empty string matches everywhere.", name, "invalid_value")
        return texts

    def integers(self, name: str, most: int) -> tuple[int, ...]:
        value = self._body.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise wrong_type(name, value, "a list of integers")
        if len(value) > most:
            raise invalid(f"Invalid '{name}': at most {most} entries, got {len(value)}.", name, "array_too_long")
        return tuple(value)


def as_number(name: str, value: Any) -> float:
    """A finite float. 1e999 is valid JSON and reads as infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise invalid(f"Invalid '{name}': the number must be finite.", name, "invalid_value")
    return number


def as_text(name: str, value: Any) -> str:
    """A string that can be written as UTF-8: JSON escapes can spell half a surrogate pair, text cannot hold one."""
    if not isinstance(value, str):
        raise wrong_type(name, value, "a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid(f"Invalid '{name}': the text holds half of a surrogate pair.", name, "invalid_value") from None
    return value


def wrong_type(name: str, value: Any, expected: str) -> Exception:
    """The error for a value of another JSON type than the parameter has."""
    got = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return invalid(
        f"Invalid type for '{name}': expected {expected}, got {got.get(type(value), 'null')}.", name, "invalid_type"
    )
