"""Requests to a model, which replayed inference may answer, and what two answers say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from dumps import strict_json
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.runtime.network.response import response_of

PATHS = ("/chat/completions", "/completions", "/responses")

_EXCERPT = 60
_BEFORE = 20


class ModelAnswers(Protocol):
    """Replayed inference."""

    def answer(self, exchange: pb.Exchange) -> pb.Exchange | None:
        """The answer to the request in ``exchange``, with framing "body" (one chunk for each server-sent event, or one
        JSON body); None to have the recorded one played. Called while the clock is held; real time may pass.

        ``exchange.chunks`` are those of the recorded answer, where there is one: it may say which weights it is of.
        """
        ...


@dataclass(frozen=True, slots=True)
class SaidDifferently:
    """The first place at which two answers differ: ``field`` as "choices[0].text", excerpts of both sides. ``wholly``:
    a text differs from its first letter on."""

    field: str
    recorded: str
    replayed: str
    wholly: bool = False


def asks_a_model(exchange: pb.Exchange) -> bool:
    """By method and path: whoever serves it, this is the wire of chat models."""
    try:
        path = urlsplit(exchange.url).path
    except ValueError:
        return False
    return exchange.method == "POST" and path.rstrip("/").endswith(PATHS)


def compare_answers(recorded: pb.Exchange, replayed: pb.Exchange) -> SaidDifferently | None:
    """Where what a model says differs; None if it says the same.

    Compared are texts, token ids, tool calls and finish reasons; other ids, times, token counts and the cut into events
    are not. Of a recorded answer that was cut off, what came is compared with the beginning of the other.
    """
    one, other = response_of(recorded), response_of(replayed)
    if one.status != other.status:
        return SaidDifferently("status", str(one.status), str(other.status))
    mine, theirs = said(one.body), said(other.body)
    for field in sorted({*mine, *theirs}):
        a, b = mine.get(field, ""), theirs.get(field, "")
        if a == b or (not one.whole and b.startswith(a)):
            continue
        at = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        start = max(0, at - _BEFORE)
        wholly = at == 0 and bool(a and b) and field.endswith("text")
        return SaidDifferently(field, _excerpt(a, start), _excerpt(b, start), wholly)
    return None


def said(body: bytes) -> dict[str, str]:
    """What a model says in a JSON body or in server-sent events, by field; the bytes themselves if it is neither."""
    parts: dict[str, str] = {}
    documents = list(_documents(body))
    if not documents and body.strip():
        return {"body": body.decode("utf-8", "backslashreplace")}
    for document in documents:
        for field, text in _said_in(document):
            parts[field] = parts.get(field, "") + text
    return {field: text for field, text in parts.items() if text}


def _documents(body: bytes) -> Iterator[dict[str, Any]]:
    sources = [body]
    if body.lstrip()[:1] != b"{":
        lines = body.replace(b"\r\n", b"\n").split(b"\n")
        sources = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    for source in sources:
        try:
            document = strict_json.loads(source)
        except strict_json.InvalidJson:
            continue  # "[DONE]", or an event that was cut
        if isinstance(document, dict):
            yield document


def _said_in(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if document.get("error"):
        yield "error", json.dumps(document["error"], sort_keys=True)
    choices = document.get("choices")
    for at, choice in enumerate(choices if isinstance(choices, list) else ()):
        if isinstance(choice, dict):
            yield from _choice(f"choices[{choice.get('index', at)}]", choice)
    if document.get("type") == "response.output_text.delta":
        yield f"output[{document.get('output_index', 0)}].text", _text(document.get("delta"))
    elif document.get("type") == "response.function_call_arguments.delta":
        yield f"output[{document.get('output_index', 0)}].arguments", _text(document.get("delta"))
    outputs = document.get("output")
    for at, item in enumerate(outputs if isinstance(outputs, list) else ()):
        if isinstance(item, dict):
            yield from _output(f"output[{at}]", item)


def _choice(path: str, choice: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield f"{path}.text", _text(choice.get("text"))
    yield f"{path}.finish_reason", _text(choice.get("finish_reason"))
    ids = choice.get("token_ids")
    yield f"{path}.token_ids", "".join(f"{token} " for token in ids) if isinstance(ids, list) else ""
    for side in (choice.get("message"), choice.get("delta")):
        if not isinstance(side, dict):
            continue
        for name in ("content", "refusal", "reasoning_content"):
            yield f"{path}.{'text' if name == 'content' else name}", _text(side.get(name))
        calls = side.get("tool_calls")
        for at, call in enumerate(calls if isinstance(calls, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                where = f"{path}.tool_calls[{call.get('index', at)}]"
                yield f"{where}.name", _text(function.get("name"))
                yield f"{where}.arguments", _text(function.get("arguments"))


def _output(path: str, item: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield f"{path}.name", _text(item.get("name"))
    yield f"{path}.arguments", _text(item.get("arguments"))
    contents = item.get("content")
    for content in contents if isinstance(contents, list) else ():
        if isinstance(content, dict):
            yield f"{path}.text", _text(content.get("text"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _excerpt(text: str, start: int) -> str:
    return ("…" if start else "") + printable(text[start:], _EXCERPT)
