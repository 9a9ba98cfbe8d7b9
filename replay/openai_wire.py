"""The OpenAI wire format: error bodies, answers, stream chunks and server-sent events, in one place.

Sans-I/O and without an HTTP library: the reference server writes these, and whatever imitates a peer reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODELS = "/v1/models"

DONE = b"data: [DONE]\n\n"


class ApiError(Exception):
    """A request that cannot be served, as the client is told. Raised by everything between socket and engine.

    ``param`` names the offending field where there is one. ``code`` is the machine-readable word.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, kind: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the client must change its request."""
    return ApiError(400, message, param=param, code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one HTTP request, all choices together."""

    prompt_tokens: int
    completion_tokens: int

    def body(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One finished answer. ``token_ids`` only where the client asks for them."""

    index: int
    text: str
    finish_reason: str
    token_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """What all bodies and chunks of one HTTP request share. ``created`` is Unix time in seconds; ``fingerprint`` names
    what decides the answer's bits, see `replay.serving.fingerprint`."""

    id: str
    model: str
    created: int
    chat: bool
    fingerprint: str

    def body(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer to a request without streaming."""
        bodies = [
            {
                "index": choice.index,
                **self._content(choice.text),
                "logprobs": None,
                "finish_reason": choice.finish_reason,
                **_ids(choice.token_ids),
            }
            for choice in choices
        ]
        return {**self._head("chat.completion"), "choices": bodies, "usage": usage.body()}

    def role_chunk(self, index: int) -> dict[str, Any]:
        """A chat stream's first chunk of each choice."""
        return self._chunk({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def text_chunk(
        self, index: int, text: str, finish_reason: str | None = None, *, token_ids: Sequence[int] | None = None
    ) -> dict[str, Any]:
        """A piece of one choice's text; the last one of each choice carries the reason."""
        said: dict[str, Any] = {"text": text}
        if self.chat:
            said = {"delta": {"content": text} if text else {}}
        return self._chunk({"index": index, **said, "finish_reason": finish_reason, **_ids(token_ids)})

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The extra last chunk that ``stream_options.include_usage`` asks for: no choices, only counts."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage.body()}

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        choice["logprobs"] = None
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, chat_object: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": chat_object if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def _ids(token_ids: Sequence[int] | None) -> dict[str, Any]:
    return {} if token_ids is None else {"token_ids": list(token_ids)}


def model_list(names: Sequence[str], created: int) -> dict[str, Any]:
    """The body of ``GET /v1/models``."""
    data = [{"id": name, "object": "model", "created": created, "owned_by": "pplx"} for name in names]
    return {"object": "list", "data": data}


def encode(body: dict[str, Any]) -> bytes:
    """Compact UTF-8 JSON. NaN is refused: it is not JSON."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(body) + b"\n\n"


class EventReader:
    """Splits a stream of server-sent events into the JSON bodies of its ``data`` lines, wherever the bytes were cut.

    Lines end in LF or CRLF; other fields and comments are skipped, as the specification asks. ``done`` is set by
    ``[DONE]``.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []
        self.done = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The bodies that ``data`` completes.

        Raises:
            ValueError: an event's data is not a JSON object.
        """
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                payload, self._data = b"\n".join(self._data), []
                if payload == b"[DONE]":
                    self.done = True
                    continue
                body = json.loads(payload)
                if not isinstance(body, dict):
                    raise ValueError(f"an event holds {type(body).__name__} where an object belongs")
                yield body
