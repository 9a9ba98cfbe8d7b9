"""Frozen dataclasses from JSON, strictly: each key once and known, each value of its field's type."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class Object:
    """A JSON object whose keys are taken one after another. Errors are ValueError and name the place."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ValueError(f"{where} must be an object, got {type(data).__name__}")
        self._data, self._where = dict(data), where

    def take(self, name: str, kind: type[T]) -> T:
        if name not in self._data:
            raise ValueError(f"{self._where} has no key {name!r}")
        value: T = convert(kind, self._data.pop(name), f"{self._where}.{name}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        return tuple(convert(int, value, f"{self._where}.{name}[]") for value in self.take(name, list))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(convert(str, value, f"{self._where}.{name}[]") for value in self.take(name, list))

    def end(self) -> None:
        """Refuse what nobody took."""
        if self._data:
            raise ValueError(f"{self._where} has an unknown key {next(iter(self._data))!r}")


def build(cls: type[T], data: Any, where: str) -> T:
    """An object of a dataclass; a field with a default may be left out."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} must be an object, got {type(data).__name__}")
    hints, values, rest = get_type_hints(cls), {}, dict(data)
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in rest:
            values[field.name] = convert(hints[field.name], rest.pop(field.name), f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where} has no key {field.name!r}")
    if rest:
        raise ValueError(f"{where} has an unknown key {next(iter(rest))!r}")
    return cls(**values)


def convert(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as a value of ``kind``: plain types, enums, dataclasses, tuples, and unions with None."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(kind) if option is not type(None)]
        return None if value is None else convert(options[0], value, where)
    if origin is tuple:
        return _items(get_args(kind), value, where)
    if is_dataclass(kind):
        return build(kind, value, where)  # type: ignore[arg-type]
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{where} is no {kind.__name__}: {str(value)[:80]!r}") from None
    if kind is float and type(value) in (int, float):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{where} must be of type {kind.__name__}, got {type(value).__name__}")
    return value


def _items(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, got {type(value).__name__}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        if kinds[0] is int:  # token ids, of which there are many
            if all(type(item) is int for item in value):
                return tuple(value)
            raise ValueError(f"{where} must be a list of integers")
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise ValueError(f"{where} must have {len(kinds)} entries, got {len(value)}")
    return tuple(
        convert(kind, item, f"{where}[{place}]") for place, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )
