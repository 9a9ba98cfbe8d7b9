"""One text of a dump after the rule of its field: what stays of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b

from dumps.record.secrets import is_secret_name, masked, scrub_body, scrub_text, text_spans
from dumps.redact.changes import Changes, What
from dumps.redact.labels import REMOVED, Labels, is_name, is_term
from dumps.redact.policy import NAMESPACES, Sort
from dumps.redact.words import in_our_words
from dumps.redact.world import NEEDED, NO_TEXT, SECRET
from dumps.tensors import LE32_BYTES, from_le32

COMPARED = "a verdict compares it"
OF_THE_MACHINE = "a fact of the machine or its start"
NOT_A_TERM = "text where only a name or a number may stand"
MAX_BLOCK_ID = 1 << 24
"""No pool has so many blocks, and no text reads as smaller numbers."""

_STANDARD_NAME = re.compile(
    r"MainThread|engine|asyncio_\d+|Task-\d+|Thread-\d+(?: \(\w+\))?|ThreadPoolExecutor-\d+_\d+"
)
_RESULT = re.compile(r"\?|[a-z_]{1,40}=-?[0-9.]{1,40}(?: [a-z_]{1,40}=-?[0-9.]{1,40}){0,40}")
_NUMBER = re.compile(r"-?[0-9]{1,19}")


class Texts:
    """Redacts texts by the sort of their field. ``labels`` makes up names, ``changes`` counts what happened.

    ``ids`` are the requests' and what they become: a message may name them.
    ``has_program``: names serve a replay of the program to match by, so that they stay without ``prompt``.
    """

    def __init__(self, *, prompt: bool, has_program: bool, key: bytes, labels: Labels, changes: Changes) -> None:
        self._prompt, self._has_program, self._key = prompt, has_program, key
        self._labels, self._changes = labels, changes
        self.ids: dict[str, str] = {}
        self._rules: dict[Sort, Callable[[str, str], str]] = {
            Sort.TERM: self._term,
            Sort.RESULT: self._result,
            Sort.LABEL: self.label,
            Sort.FACT: self._fact,
            Sort.WORLD: self._world,
            Sort.MESSAGE: self._message,
            Sort.NOTE: self._note,
            Sort.DIGEST: self._digest,
        }

    def text(self, path: str, sort: Sort, value: str) -> str:
        """What stays of ``value``, perhaps nothing."""
        if not value or value == REMOVED:
            return value
        rule = self._rules.get(sort)
        return rule(path, value) if rule is not None else self._change(path, "removed", NO_TEXT, value, "")

    def data(self, path: str, sort: Sort, value: bytes) -> bytes:
        """As `text`, for a field of bytes."""
        if not value:
            return value
        if sort is Sort.NUMBERS and _is_numbers(value):
            return value
        if sort is Sort.WORLD and not self._prompt:
            clean = masked(value, text_spans(value))
            self._note_secret(path, value, clean)
            return clean
        self._changes.add(path, "removed", NO_TEXT, value)
        return b""

    def arguments(self, path: str, values: list[str]) -> list[str]:
        """Arguments of a command line: what follows an option with a secret name is a secret too."""
        if self._prompt:
            for value in values:
                self._changes.add(path, "removed", OF_THE_MACHINE, value)
            return []
        out: list[str] = []
        for before, value in zip(["", *values], values, strict=False):
            secret = before.startswith("-") and "=" not in before and is_secret_name(before.lstrip("-"))
            clean = REMOVED if secret and not value.startswith("-") else scrub_text(value)
            out.append(value if clean == value else self._change(path, "removed", SECRET, value, clean))
        return out

    def variable(self, path: str, name: str, value: str) -> str:
        """The value of an environment variable."""
        if self._prompt or not value:
            return self._change(path, "removed", NO_TEXT, value, "") if value else value
        clean = REMOVED if is_secret_name(name) else scrub_text(value)
        self._note_secret(path, value, clean)
        return clean

    def keeps_label(self, value: str) -> bool:
        """Whether a name that people may have chosen stays as it is."""
        if self._prompt:
            return _STANDARD_NAME.fullmatch(value) is not None
        return is_name(value) or (self._has_program and scrub_text(value) == value)

    def label(self, path: str, value: str) -> str:
        space = NAMESPACES.get(path, "label")
        keeps = self.keeps_label(value)
        if keeps and not is_name(value):
            self._changes.keep(path, NEEDED, value)
        new = value if keeps else self._labels.made_up(space, value)
        return value if new == value else self._change(path, "mapped", "a name that may be of people", value, new)

    def _term(self, path: str, value: str) -> str:
        return value if is_term(value) else self._change(path, "removed", NOT_A_TERM, value, REMOVED)

    def _result(self, path: str, value: str) -> str:
        return value if not self._prompt and _RESULT.fullmatch(value) else self._term(path, value)

    def _fact(self, path: str, value: str) -> str:
        if self._prompt:
            return self._change(path, "removed", OF_THE_MACHINE, value, "")
        clean = scrub_text(value)
        return value if clean == value else self._change(path, "removed", SECRET, value, clean)

    def _world(self, path: str, value: str) -> str:
        if self._prompt:
            if _NUMBER.fullmatch(value) and path.endswith("args[]"):
                return value
            return self._change(path, "removed", NO_TEXT, value, REMOVED if path.endswith("args[]") else "")
        clean = _scrubbed(path, value)
        self._note_secret(path, value, clean)
        return clean

    def _message(self, path: str, value: str) -> str:
        ours = in_our_words(value, self.ids)
        if ours is not None:
            return ours if ours == value else self._change(path, "mapped", "ids of requests in it", value, ours)
        compared = path.startswith("failures") or self._has_program
        if self._prompt or not compared:
            return self._change(path, "removed", NO_TEXT, value, "")
        clean = scrub_text(value)
        self._changes.keep(path, COMPARED, clean)
        return value if clean == value else self._change(path, "removed", SECRET, value, clean)

    def _note(self, path: str, value: str) -> str:
        if in_our_words(value, {}) is not None:
            return value
        clean = "" if self._prompt else scrub_text(value)
        return value if clean == value else self._change(path, "removed", NO_TEXT, value, clean)

    def _digest(self, path: str, value: str) -> str:
        new = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16, key=self._key).hexdigest()
        return self._change(path, "hashed", "a hash of something of people's", value, new)

    def _note_secret(self, path: str, old: str | bytes, new: str | bytes) -> None:
        if new == old:
            self._changes.keep(path, NEEDED, old)
        else:
            self._changes.add(path, "removed", SECRET, old)

    def _change(self, path: str, what: What, reason: str, old: str, new: str) -> str:
        self._changes.add(path, what, reason, old)
        return new


def _scrubbed(path: str, value: str) -> str:
    if path.endswith("_json"):
        clean = scrub_body(value.encode("utf-8", "surrogatepass"), content_type="application/json")
        value = clean.decode("utf-8", "replace") if clean is not None else ""
    return scrub_text(value)


def _is_numbers(data: bytes) -> bool:
    return len(data) % LE32_BYTES == 0 and all(0 <= value < MAX_BLOCK_ID for value in from_le32(data))
