"""What a completion endpoint said, added up from the documents of its stream or from one JSON body. Without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_CHOICES = 128
MAX_MESSAGE = 2000


@dataclass(slots=True)
class Said:
    """One choice. ``events`` counts the documents that brought text: a token is in at most one of them."""

    pieces: list[str] = field(default_factory=list)
    finish_reason: str = ""
    events: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The error that a server states, as far as it does. ``param`` and ``code`` are "" where it does not."""

    message: str = ""
    code: str = ""
    param: str = ""

    @classmethod
    def of(cls, document: Any) -> ErrorBody | None:
        """From a body with an ``error`` object, text or ``detail``, as servers write them; None without any."""
        if not isinstance(document, Mapping):
            return None
        error = document.get("error") or document.get("detail")
        if error is None:
            # Older vLLM has no envelope: {"object": "error", "message": ...}.
            error = document if document.get("object") == "error" else None
        if isinstance(error, Mapping):
            return cls(
                message=_text(error.get("message"))[:MAX_MESSAGE],
                code=str(error.get("code") or "")[:100],
                param=_text(error.get("param"))[:100],
            )
        return cls(message=str(error)[:MAX_MESSAGE]) if error else None


@dataclass(slots=True)
class Reply:
    """``completion_tokens`` counts all choices together, None where the server did not count."""

    choices: dict[int, Said] = field(default_factory=dict)
    completion_tokens: int | None = None
    error: ErrorBody | None = None

    def take(self, document: Mapping[str, Any]) -> None:
        """Add one event of a stream, or a whole body. What has not the right type is passed over."""
        self.error = self.error or ErrorBody.of(document)
        usage = document.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        if type(tokens) is int and tokens >= 0:
            self.completion_tokens = tokens
        choices = document.get("choices")
        for place, choice in enumerate(choices if isinstance(choices, list) else ()):
            if isinstance(choice, Mapping):
                self._choice(place, choice)

    def _choice(self, place: int, choice: Mapping[str, Any]) -> None:
        index = choice.get("index", place)
        if type(index) is not int or not 0 <= index < MAX_CHOICES:
            return
        said = self.choices.setdefault(index, Said())
        said.finish_reason = _text(choice.get("finish_reason")) or said.finish_reason
        pieces = [_text(choice.get("text"))]
        for side in (choice.get("delta"), choice.get("message")):
            if isinstance(side, Mapping):
                pieces += [_text(side.get("reasoning_content")), _text(side.get("content"))]
        if text := "".join(pieces):
            said.pieces.append(text)
            said.events += 1

    def is_whole(self, n: int) -> bool:
        """Whether each of ``n`` choices came to an end."""
        return all(index in self.choices and self.choices[index].finish_reason for index in range(n))

    def tokens(self, index: int) -> int | None:
        """Answer tokens of a choice, None where they are not known: a count is given for all choices together, and
        tells of each only if it is one, or if every event was a token."""
        if self.completion_tokens is None or index not in self.choices:
            return None
        if len(self.choices) == 1:
            return self.completion_tokens
        each = sum(said.events for said in self.choices.values())
        return self.choices[index].events if each == self.completion_tokens else None

    def is_cut(self, index: int, asked: int | None) -> bool | None:
        """Whether a choice ended for its length before it had the tokens that were ``asked`` for (None: no limit was
        given). None where that cannot be told."""
        said = self.choices.get(index)
        if said is None or said.finish_reason != "length":
            return False
        if asked is None:
            return True
        if (exact := self.tokens(index)) is not None:
            return exact < asked
        if said.events >= asked:
            return False
        if self.completion_tokens is None:
            return None
        others = sum(other.events for other in self.choices.values()) - said.events
        return True if self.completion_tokens - others < asked else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
