"""A state with something in every field of the schema, found by reflection, so that a later field is filled too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from dumps.schema import state_pb2 as pb
from dumps.schema.layout import CONTAINER

Plant = Callable[[str], str]
"""What to put into the text field with this path."""


def full_state(plant: Plant, *, without: frozenset[str] = frozenset()) -> pb.RuntimeState:
    """Every field set, every list with one element. Fields ``without`` stay empty."""
    state = pb.RuntimeState()
    _fill(state, "", plant, without)
    return state


def _fill(message: Message, prefix: str, plant: Plant, without: frozenset[str]) -> None:
    fields: Any = message.DESCRIPTOR.fields
    for field in fields:
        path = prefix + field.name + ("[]" if field.is_repeated else "")
        if (not prefix and field.number in CONTAINER) or path in without:
            continue
        target = getattr(message, field.name)
        if field.type == field.TYPE_MESSAGE:
            one = target.add() if field.is_repeated else target
            one.SetInParent()
            _fill(one, f"{path}.", plant, without)
            continue
        text = plant(path)
        value: Any = 1
        if field.type == field.TYPE_STRING:
            value = text
        elif field.type == field.TYPE_BYTES:
            value = text.encode()
        if field.is_repeated:
            target.append(value)
        else:
            setattr(message, field.name, value)
