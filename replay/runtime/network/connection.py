"""One connection of the replayed program, without I/O: requests go in as bytes, out comes what a socket would give."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import h11

from dumps.record.seams.http_tap import Asker
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.runtime.clock import VirtualClock
from replay.runtime.errors import RuntimeReplayError, UnreadableRequest
from replay.runtime.network.play import Event

MAX_HEAD = 1024 * 1024
OPEN = ("data", "unknown")
"""Kinds of events after which the connection goes on, as far as is known."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"
_PORTS = {"http": 80, "https": 443}


class ConnectFailed(Exception):
    """A connection that did not come about when it was recorded. Peers turn it into what their client raises.

    ``kind`` is "dns", "refused", "reset", "timeout" or "tls" after ``after_ns`` of waiting; or "silence": nothing ever
    happens, and the client's own timeout has to end it.
    """

    def __init__(self, kind: str, message: str, after_ns: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.after_ns = after_ns

    @property
    def in_handshake(self) -> bool:
        """Whether it was TLS that failed, on a connection that stood, as far as the text tells."""
        return self.kind == "tls" or (self.kind == "silence" and "handshake" in self.message)


class Answer(Protocol):
    """Gives the events for a request; ``continued`` says that "100 Continue" has been sent, ``asker`` who asks if it is
    not the running task. Raises what the program is to be told."""

    def __call__(self, exchange: pb.Exchange, *, continued: bool, asker: Asker | None) -> list[Event]: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Connection:
    """``connect_ns`` is how long it takes to come about, ``handshake_failure`` how its TLS handshake fails.

    ``asker`` is who makes the next request, where a library writes it from a task of its own.
    ``unknown`` makes the error of one who reads where nothing is recorded.
    ``released`` is called when a request is answered, or when the connection is closed before.
    """

    host: str
    port: int
    tls: bool
    clock: VirtualClock
    answer: Answer
    refuse: Callable[[RuntimeReplayError], RuntimeReplayError]
    unknown: Callable[[], RuntimeReplayError]
    abandon: Callable[[str, str], None]
    released: Callable[[], None]
    connect_ns: int = 0
    handshake_failure: ConnectFailed | None = None
    asker: Asker | None = None
    _events: deque[Event] = field(default_factory=deque)
    _taken: int = 0  # bytes of the first event
    _parser: h11.Connection = field(init=False)
    _request: h11.Request | None = None
    _body: bytearray = field(default_factory=bytearray)
    _continued: bool = False
    _closed: bool = False

    def __post_init__(self) -> None:
        self._parser = _parser()

    def send(self, data: bytes) -> None:
        """Bytes of one or more requests. A request is answered when its last byte is here.

        Raises UnrecordedRequest, UnreadableRequest, ResponseNotRecorded; BrokenPipeError once the peer has ended.
        """
        if self._over():
            raise BrokenPipeError(32, "Broken pipe")
        while data:
            data = self._feed(data)

    def peek(self) -> Event | None:
        """What comes next; None while nothing is to come. An end is never over: it comes again and again."""
        return self._events[0] if self._events else None

    def take(self, most: int | None = None) -> Event:
        """The next event; of data at most ``most`` bytes, the rest stays. Raises IndexError where there is none.

        Raises AnswerNotRecorded where the recorded program read no further.
        """
        event = self._events[0]
        if event.kind == "unknown":
            raise self.unknown()
        if event.kind != "data":
            return event
        start = self._taken
        end = len(event.data) if most is None else min(len(event.data), start + most)
        if end < len(event.data):
            self._taken = end  # not cut off: of an answer of many megabytes, each read would copy the rest
        else:
            self._events.popleft()
            self._taken = 0
        return event if (start, end) == (0, len(event.data)) else Event(event.due_ns, "data", event.data[start:end])

    def wait_ns(self, event: Event) -> int:
        """How long the program has to wait for ``event`` from now on."""
        return max(0, event.due_ns - self.clock.monotonic_ns())

    @property
    def readable(self) -> bool:
        """Whether a read would return at once: for an idle connection, whether its peer has ended it."""
        event = self.peek()
        return event is not None and not self.wait_ns(event)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.released()
        if self._request is not None:
            self.abandon(self._request.method.decode("latin-1"), self._url(self._request))

    def _over(self) -> bool:
        return bool(self._events) and self._events[0].kind not in OPEN and not self.wait_ns(self._events[0])

    def _feed(self, data: bytes) -> bytes:
        """Read on in one request; returns what came after it."""
        try:
            self._parser.receive_data(data)
            while True:
                event = self._parser.next_event()
                if isinstance(event, h11.Request):
                    if not event.http_version.startswith(b"1."):
                        raise h11.LocalProtocolError(f"HTTP/{event.http_version.decode('latin-1')}")
                    self._request = event
                    if self._parser.they_are_waiting_for_100_continue:
                        self._continued = True
                        self._events.append(Event(self.clock.monotonic_ns(), "data", _CONTINUE))
                elif isinstance(event, h11.Data):
                    self._body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:
                    return b""
        except h11.ProtocolError as error:
            raise self.refuse(
                UnreadableRequest(f"the bytes written to {self.host}:{self.port} are no HTTP/1.1 request: {error}")
            ) from error
        rest = self._parser.trailing_data[0]
        self._finish()
        return rest

    def _finish(self) -> None:
        assert self._request is not None
        exchange = pb.Exchange(
            method=self._request.method.decode("latin-1"),
            url=self._url(self._request),
            request_body=bytes(self._body),
            direction="out",
        )
        for name, value in self._request.headers.raw_items():
            exchange.request_headers.add(key=name.decode("latin-1"), value=value.decode("latin-1"))
        continued = self._continued
        if self._request.method == b"CONNECT":
            self._through_a_tunnel(self._request.target.decode("latin-1"))
            return
        self._request, self._body, self._continued, self._parser = None, bytearray(), False, _parser()
        self.released()
        self._events.extend(self.answer(exchange, continued=continued, asker=self.asker))

    def _through_a_tunnel(self, target: str) -> None:
        """What is said to a proxy for a tunnel is not recorded; the exchanges are those with the server behind it."""
        host, _, port = target.rpartition(":")
        if not port.isdecimal():
            raise self.refuse(UnreadableRequest(f"a tunnel to {printable(target)!r}, which has no port"))
        self.host, self.port = host.strip("[]"), int(port)
        self._request, self._parser = None, _parser()
        self._events.append(Event(self.clock.monotonic_ns(), "data", _TUNNEL))

    def _url(self, request: h11.Request) -> str:
        """As the recorder writes it: of what the program connected to, unless a proxy is asked for another."""
        target = request.target.decode("latin-1")
        if "://" in target.partition("?")[0]:
            return target
        scheme = "https" if self.tls else "http"
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        port = "" if _PORTS[scheme] == self.port else f":{self.port}"
        return f"{scheme}://{host}{port}{target}"


def _parser() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
