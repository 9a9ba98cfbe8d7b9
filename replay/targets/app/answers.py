"""The model's side of a replayed program: its requests go to the model's worker, its answers come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from dumps.schema import state_pb2 as pb
from dumps.text import printable

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]

INTERNAL_FLAGS = "x-pplx-internal-flags"


class ReplayedAnswers:
    """A `ModelAnswers` that asks for replayed inference. Free of torch: ``ask`` reaches another process.

    ``problems`` holds why the model could not answer, once for each reason; the recorded answers are played then.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.problems: list[dict[str, str]] = []
        self.answered = 0

    def answer(self, exchange: pb.Exchange) -> pb.Exchange | None:
        """What the model says to the request in ``exchange``; None where it cannot, or could not say the same twice.

        The chunks of ``exchange`` are those of the recorded answer: what it says of itself finds the weights.
        """
        body = _object(exchange.request_body)
        if body is None:
            return None
        if reason := _undetermined(body):
            self._note({"class": "Undetermined", "message": reason, "remedy": "send a seed with the request"})
            return None
        known = _known(exchange)
        reply = self._ask(
            {
                "path": urlsplit(exchange.url).path,
                "body": exchange.request_body.decode(),
                "flags": next((h.value for h in exchange.request_headers if h.key.lower() == INTERNAL_FLAGS), ""),
                "served_as": known.get("system_fingerprint") or "",
                "id": known.get("id") or "",
                "created": known.get("created") or 0,
            }
        )
        if isinstance(problem := reply.get("error"), dict):
            self._note({name: str(problem.get(name, "")) for name in ("class", "message", "remedy")})
            return None
        if reply["status"] != 200:
            # A server that knows more than ours answered this when it was recorded.
            refusal = printable("".join(map(str, reply["chunks"])), 300)
            remedy = "what our server does not serve cannot be computed again; the recorded answer stands"
            self._note({"class": "Refused", "message": f"our server refuses the request: {refusal}", "remedy": remedy})
            return None
        self.answered += 1
        answer = pb.Exchange(status=200, framing="body", direction="out", ended_ns=1)  # whole: without an end it hangs
        kind = "text/event-stream; charset=utf-8" if body.get("stream") else "application/json"
        answer.response_headers.add(key="Content-Type", value=kind)
        for chunk in reply["chunks"]:
            data = str(chunk).encode()
            answer.chunks.add(data=data, size=len(data))
        return answer

    def _note(self, problem: dict[str, str]) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _undetermined(body: Mapping[str, Any]) -> str:
    """Why the recorded answer cannot be expected to come again."""
    if body.get("temperature", 1.0) != 0 and body.get("seed") is None:
        return "a request asks for a random answer and names no seed"
    return ""


def _known(exchange: pb.Exchange) -> dict[str, Any]:
    """The first JSON object of the recorded answer: a body, or the first event of a stream."""
    text = b"".join(chunk.data for chunk in exchange.chunks)
    start = text.find(b'{"id"')
    if start < 0:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
