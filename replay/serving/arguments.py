"""Launch arguments as they may be recorded: without secrets, and without the names of people's folders."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

_SECRET = re.compile(r"(?i)(key(?!s)|token(?!s|iz)|secret|passw|credential|authori[sz]ation)")
REMOVED = "<removed>"


def recordable(arguments: Iterable[str]) -> list[str]:
    """Values of options that sound secret are replaced, in both spellings; of paths the last name stays."""
    kept: list[str] = []
    hide_next = False
    for argument in arguments:
        if hide_next and not argument.startswith("--"):
            kept.append(REMOVED)
            hide_next = False
            continue
        name, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
        secret = _SECRET.search(name) is not None
        hide_next = secret and not equals
        kept.append(name + equals + (REMOVED if secret and equals else _last_name(value)))
    return kept


def _last_name(value: str) -> str:
    return f".../{PurePath(value).name}" if value.startswith(("/", "~", "./", "../")) else value
