"""What passes between the event loop and the engine's thread: jobs one way, updates the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from replay.engine.request import FinishCause, FinishReason, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended. ``dump_id`` names the dump that tells why, if one was written.

    ``status`` is the HTTP status where the client gets an error, 200 where it gets an answer.
    """

    reason: FinishReason
    cause: FinishCause
    status: int = 200
    message: str = ""
    dump_id: str | None = None


# Told to clients. The facts are in the dump: exception messages may hold other people's text.
_ERRORS = {
    FinishCause.NON_FINITE: (500, "The model's output was not finite (NaN or infinity); this request was ended."),
    FinishCause.ENGINE_ERROR: (500, "The engine failed while this request was running."),
    FinishCause.TIMEOUT: (504, "The request took longer than the server allows."),
    FinishCause.CLIENT_GONE: (499, "The client closed the connection."),
}


def ended(reason: FinishReason, cause: FinishCause, *, message: str = "", dump_id: str | None = None) -> Ended:
    """An end with the status and the words that belong to its cause."""
    status, words = _ERRORS.get(cause, (200, ""))
    return Ended(reason=reason, cause=cause, status=status, message=message or words, dump_id=dump_id)


@dataclass(frozen=True, slots=True)
class Update:
    """One step's news of one choice: a token, the end, or both when that token was the last."""

    choice: int
    token: int | None = None
    ended: Ended | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One choice of one HTTP request. The engine's thread owns it until its `Ended` update.

    ``sink`` belongs to the loop and is only touched there. ``arrival_ns`` is monotonic.
    """

    request: Request
    choice: int
    sink: asyncio.Queue[Update]
    endpoint: str
    stream: bool
    arrival_ns: int
    prompt_text: str | None = None
