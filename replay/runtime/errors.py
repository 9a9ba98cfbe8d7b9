"""Errors of the mocked runtime: a program asked for what was not recorded, or for what cannot be replayed."""

from __future__ import annotations

from replay.errors import ReplayError


class RuntimeReplayError(ReplayError):
    """Root of the errors that the mocked runtime raises on purpose, into the replayed program or out of the replay."""


class UnrecordedRequest(RuntimeReplayError):
    """The program sent an HTTP request that its recording does not answer. Usually changed code, or a value in the
    request that the replay does not hold still: a date, a random id, the order of a set."""

    exit_code = 12
    request = ""
    """The request in one line, and who sent it."""

    remedy = (
        "Make the program send what was recorded; or, if the change is meant, run it with --fork and a handler that "
        "answers it; or record again."
    )


class UnrecordedFile(RuntimeReplayError):
    """The replayed program asks for something about its files that the recorded one never asked for. Usually new code,
    or a path that is made of something the recording does not fix, such as the folder the program lies in."""

    exit_code = 12
    remedy = (
        "Use the recorded path; or answer the call by hand: load_env(DUMP).mock_syscall(NAME, handler). The handlers "
        "of --fork answer requests only."
    )

    def __init__(self, call: str, name: str, nearest: str = "", detail: str = "") -> None:
        self.call, self.name, self.nearest = call, name, nearest
        lines = [f"{call} of {name!r} was not recorded{detail and f': {detail}'}."]
        if nearest:
            lines += [f"  recorded (dump):       {nearest}", f"  replayed (your code):  {name}"]
        super().__init__("\n".join(lines))


def in_one_line(error: ReplayError) -> str:
    """What was refused, in one line."""
    if isinstance(error, UnrecordedFile):
        return f"{error.call} of {error.name!r}"
    return getattr(error, "request", "") or str(error).partition("\n")[0]


class AnswerNotRecorded(RuntimeReplayError):
    """The program waits for more of an answer than the recorded one did, which had let go of it by then: by its own
    timeout, or since it failed while it read."""

    exit_code = 12
    request = ""
    """What is waited for, in one line."""

    remedy = "What would have come then, nobody knows. Record the program anew; or have it read no further."


class UnreadableRequest(RuntimeReplayError):
    """What a client wrote is not HTTP/1.1. Usually HTTP/2, a WebSocket after its handshake, or TLS inside a tunnel."""

    exit_code = 20
    remedy = "Use HTTP/1.1 without a proxy tunnel for what is to be replayed."


class ResponseNotRecorded(RuntimeReplayError):
    """The request is in the dump, and what came back is not. Usually a record level below `full`, a body beyond the
    recorder's limits, or a compressed one that held a secret."""

    exit_code = 20
    remedy = "Record again with level full and a larger LogLimits.bytes; or answer the request by --fork and a handler."


class SyncClientInThread(RuntimeReplayError):
    """A blocking HTTP client was used outside of the main thread, where waiting cannot move virtual time: two threads
    would move one clock, in an order that differs from run to run. Usually `asyncio.to_thread` around requests."""

    exit_code = 20
    remedy = "Use the client in the main thread, or its async form (httpx.AsyncClient, aiohttp) in a task."


class WaitsForEver(RuntimeReplayError):
    """The program blocks on an answer that never came while it was recorded, and it set no timeout."""

    remedy = "Give the client a timeout. The recorded program stood still here, or was cut off before the answer came."
