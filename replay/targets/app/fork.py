"""Answers beyond the recorded world: only with --fork, and only by handlers that the user names.

    def handler(request):                        # plain, not async
        if request.url.endswith("/rates"):
            return 200, {"usd": 1.08}
        return None                              # left alone: it stays unrecorded

``request`` is an `Exchange`: method, url (absolute), request_headers (pairs with .key and .value, names as sent) and
request_body (bytes). What is returned becomes the answer:

* ``None``: none; a request to a model goes to the model, any other is refused as unrecorded;
* str (text/plain), bytes, or anything that JSON can hold (application/json), with status 200;
* ``(status, body)`` or ``(status, headers, body)``: body as above or None for an empty one, headers a dict or pairs;
* an `Exchange` with status, response_headers and chunks.
"""

from __future__ import annotations

import inspect
import json
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dumps.record.stacks import is_in_app
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.errors import UsageError
from replay.runtime.network.model import ModelAnswers, asks_a_model

MAX_EVIDENCE = 8000  # characters
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

Handler = Callable[[pb.Exchange], Any]


class HandlerFailed(UsageError):
    """A fork handler raised, or returned what is no answer. ``evidence`` is its traceback."""

    def __init__(self, message: str, *, remedy: str, evidence: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.evidence = evidence


class ForkHandlers:
    """Asks the user's handler, and for requests to a model that it leaves alone, the model.

    What the handler asks the network itself is played from the record, and refused beyond it.

    ``problem`` is the handler's own failure. It is raised into the program, which might take it for a failure of the
    network, so whoever runs the program looks here.
    """

    def __init__(self, handler: Handler, model: ModelAnswers | None) -> None:
        self._handler = handler
        self._model = model
        self._asking = False
        self.problem: HandlerFailed | None = None

    def handle(self, request: pb.Exchange) -> pb.Exchange | None:
        """The answer to a request that was not recorded. Raises HandlerFailed."""
        if self._asking:  # by the handler itself
            return None
        self._asking = True
        try:
            return self._answer(request)
        except HandlerFailed as error:
            self.problem = self.problem or error
            raise
        finally:
            self._asking = False

    def _answer(self, request: pb.Exchange) -> pb.Exchange | None:
        asked = f"{printable(request.method, 40)} {printable(request.url, 200)}"
        try:
            result = self._handler(request)
        except BaseException as error:  # SystemExit too, which would end the program as if that had left
            raise HandlerFailed(
                f"the fork handler raised {type(error).__name__} for {asked}: {error}",
                remedy="return None to leave a request; a handler has no network of its own",
                evidence=_evidence(error),
            ) from error
        if result is None:
            return self._model.answer(request) if self._model is not None and asks_a_model(request) else None
        if inspect.iscoroutine(result):
            result.close()
            raise HandlerFailed(
                f"the fork handler returned a coroutine for {asked}", remedy="make it a plain function: def, not async"
            )
        try:
            if isinstance(result, pb.Exchange):
                return _completed(result)
            return _with_status(result) if isinstance(result, tuple) else _answer(result)
        except (TypeError, ValueError) as error:
            raise HandlerFailed(
                f"the fork handler returned {type(result).__name__} for {asked}: {error}",
                remedy="return None, text, bytes, JSON, (status, body), (status, headers, body), or an Exchange",
            ) from error


def _evidence(error: BaseException) -> str:
    """Where the handler failed, in its own frames: how a client of the network came to its error tells nothing."""
    told = traceback.TracebackException.from_exception(error)
    told.__cause__ = told.__context__ = None
    own = [frame for frame in told.stack if is_in_app(frame.filename)]
    told.stack[:] = own or told.stack
    return "".join(told.format())[-MAX_EVIDENCE:]


def _completed(answer: pb.Exchange) -> pb.Exchange:
    """With what a handler need not say: that it is a success, that its chunks are the body, and that they are all.
    Raises ValueError."""
    made = pb.Exchange()
    made.CopyFrom(answer)
    made.status, made.framing, made.direction = answer.status or 200, answer.framing or "body", "out"
    if made.framing == "body":
        _check_status(made.status)
        for header in made.response_headers:
            _check_header(header.key, header.value)
    made.ended_ns = answer.ended_ns or 1
    for chunk in made.chunks:
        chunk.size = chunk.size or len(chunk.data)
    return made


def _with_status(result: tuple[Any, ...]) -> pb.Exchange:
    """The answer of (status, body) or (status, headers, body). Raises TypeError and ValueError."""
    if len(result) not in (2, 3):
        raise ValueError(f"a tuple of {len(result)}; a list is JSON, a tuple is (status, body)")
    status, body = result[0], result[-1]
    _check_status(status)
    return _answer(b"" if body is None else body, status, _pairs(result[1]) if len(result) == 3 else [])


def _pairs(headers: Any) -> list[tuple[str, str]]:
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)):
            raise TypeError(f"headers are a dict or pairs of str, not {pair!r}")
        _check_header(*pair)
    return [(name, value) for name, value in pairs]


def _check_status(status: Any) -> None:
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise ValueError(f"{status!r} is no status from 200 to 599; a list is JSON, a tuple is (status, body)")


def _check_header(name: str, value: str) -> None:
    """What would end the line, or could not be sent, would be the client's failure to read, and so the program's."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a header")
    if not _VALUE.fullmatch(value):
        raise ValueError(f"the header {name} cannot have the value {value!r}: one line, of Latin-1 letters")


def _answer(body: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> pb.Exchange:
    """Raises TypeError and ValueError for a body that JSON cannot hold."""
    kind = "text/plain; charset=utf-8" if isinstance(body, str | bytes) else "application/json"
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body, allow_nan=False)).encode()
    answer = pb.Exchange(status=status, framing="body", direction="out", ended_ns=1)
    if not any(name.lower() == "content-type" for name, _ in headers):
        answer.response_headers.add(key="Content-Type", value=kind)
    for name, value in headers:
        answer.response_headers.add(key=name, value=value)
    answer.chunks.add(data=body, size=len(body))
    return answer
