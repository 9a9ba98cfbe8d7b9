"""Made-up names for those that people may have chosen."""

from __future__ import annotations

import re

from dumps.record.secrets import scrub_text

REMOVED = "REMOVED"

_TERM = re.compile(r"[\w.:,=+/<>\[\]-]{1,300}|<frozen [\w.]{1,100}>")
_NAME = re.compile(r"[\w.:,=+/<>\[\]-]{1,120}(?: \([\w.<>-]{1,80}\))?")
_MADE_UP = re.compile(r"(request|exchange|tool|function|task|label)-[0-9]{1,9}")


def is_term(text: str) -> bool:
    """Whether ``text`` looks like a word of a format or a name in code: no blank in it, and no secret."""
    return not text or (_TERM.fullmatch(text) is not None and scrub_text(text) == text)


def is_name(text: str) -> bool:
    """As `is_term`, or a thread's name with its function's: "Thread-1 (worker)"."""
    return _NAME.fullmatch(text) is not None and scrub_text(text) == text


class Labels:
    """Made-up names by space, numbered in the order in which the originals come: equal ones stay equal.

    One that a redaction has made up before stays as it is, so that redacting again changes nothing.
    """

    def __init__(self) -> None:
        self._names: dict[str, dict[str, str]] = {}
        self._taken: dict[str, set[str]] = {}

    def reserve(self, space: str, name: str) -> None:
        """Give ``name`` to nobody else: it stays in the dump."""
        self._taken.setdefault(space, set()).add(name)

    def made_up(self, space: str, name: str) -> str:
        names, taken = self._names.setdefault(space, {}), self._taken.setdefault(space, set())
        if name not in names:
            if was_made_up(space, name):
                names[name] = name
            else:
                number = len(names) + 1
                while f"{space}-{number}" in taken:
                    number += 1
                names[name] = f"{space}-{number}"
            taken.add(names[name])
        return names[name]


def was_made_up(space: str, name: str) -> bool:
    match = _MADE_UP.fullmatch(name)
    return match is not None and match[1] == space
