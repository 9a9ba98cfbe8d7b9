"""Reads the tool call that a model writes, {"name": ..., "arguments": {...}}, out of text that comes in deltas."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"]*)"\s*,\s*"arguments"\s*:\s*')


@dataclass(slots=True)
class ToolCallParser:
    """Counts braces, to see where the arguments end.

    Whether it is inside a string it forgets between two deltas: an unbalanced brace in a string that began in an
    earlier delta counts as one of the JSON's. Parsers of real engines lost their place in strings, too.
    """

    text: str = ""
    name: str = ""
    arguments: str = ""
    depth: int = 0
    in_string: bool = False
    escaped: bool = False
    complete: bool = False

    def feed(self, delta: str) -> str:
        """The piece of the arguments that ``delta`` adds. Raises ValueError where the arguments are no JSON."""
        self.begin_delta()
        if self.complete:
            return ""
        if not self.name:
            self.text += delta
            head = _HEAD.match(self.text)
            if head is None:
                return ""
            self.name, delta = head["name"], self.text[head.end() :]
        added, ended = self._up_to_the_end(delta)
        self.arguments += added
        if ended:
            json.loads(self.arguments)
            self.complete = True
        return added

    def begin_delta(self) -> None:
        self.in_string = self.escaped = False

    def state(self) -> dict[str, Any]:
        """For the context stack."""
        return asdict(self)

    def _up_to_the_end(self, delta: str) -> tuple[str, bool]:
        """What of ``delta`` belongs to the arguments, and whether they end in it."""
        for at, char in enumerate(delta):
            if self.escaped:
                self.escaped = False
            elif char == "\\" and self.in_string:
                self.escaped = True
            elif char == '"':
                self.in_string = not self.in_string
            elif char in "{}" and not self.in_string:
                self.depth += 1 if char == "{" else -1
                if not self.depth:
                    return delta[: at + 1], True
        return delta, False


class MendedToolCallParser(ToolCallParser):
    """Knows where it is, however the text was cut."""

    def begin_delta(self) -> None:
        pass


def cut_argument(arguments: str) -> str:
    """The name of the argument in which the JSON object ``arguments`` breaks off; "" where it is between two."""
    decoder = json.JSONDecoder()
    at, name = arguments.find("{") + 1, ""
    try:
        while True:
            name, at = decoder.raw_decode(arguments, _past_marks(arguments, at))
            _, at = decoder.raw_decode(arguments, _past_marks(arguments, at))
            name = ""
    except ValueError:
        return str(name)


def _past_marks(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip(" \t\r\n,:"))
