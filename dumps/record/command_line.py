"""A program's command line, as far as a dump may hold it."""

from __future__ import annotations

from collections.abc import Iterable

from dumps.record.message_text import utf8
from dumps.record.secrets import REMOVED, is_secret_name, scrub_text

MAX_BYTES = 1 << 16
HIDDEN = REMOVED.decode()


def without_secrets(argv: Iterable[str]) -> list[str]:
    """The words of ``argv``, secrets replaced by HIDDEN: also the value that follows an option with a secret name.

    Empty where they have more than MAX_BYTES together: a part of a command line is another command line.
    """
    words: list[str] = []
    size = 0
    before = ""
    for word in argv:
        word = utf8(str(word))
        size += len(word.encode())
        if size > MAX_BYTES:
            return []
        hidden = before.startswith("-") and "=" not in before and is_secret_name(before.lstrip("-"))
        words.append(HIDDEN if hidden and not word.startswith("-") else scrub_text(word))
        before = word
    return words


def hides_a_secret(argv: Iterable[str]) -> bool:
    """Whether a recorded command line is not the one that the program was given."""
    return any(HIDDEN in word for word in argv)
