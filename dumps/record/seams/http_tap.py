"""Reads along on one connection to an HTTP/1.x server and records its exchanges. It does no I/O of its own.

A seam tells the tap what passes: bytes as the program hands them down, bytes as the socket gives them, and how the
connection came and went. Requests are found in what is sent, the end of each response in what is received, so one
connection yields one `Exchange` for each request, which is in the log from its first byte on and grows as it goes.

How an exchange ended:

* ``error`` set: the connection failed, in a way that `failures` names; "closed" is an end before the response's own;
* ``error`` empty, ``ended_ns`` set, ``error_message`` GIVEN_UP: this program closed the connection before it had the
  response: its own timeout, a cancelled task, an answer it did not want to the end;
* neither: in flight when the log was read, or not followed to its end, which ``error_message`` then says.

Left out and counted in ``log.lost``: "tunnels" (CONNECT), "upgrades" (what follows a 101), "unreadable_connections"
(HTTP/2, or no HTTP), "unasked_responses" (bytes that no request asked for).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import h11

from dumps.exchanges.match_key import match_key
from dumps.record.message_text import utf8
from dumps.record.recorder import RecordLevel
from dumps.record.seams.failures import failure_kind, failure_message, is_failure
from dumps.record.seams.log import WorldLog, task_name
from dumps.record.seams.loop_turns import turn_ns
from dumps.record.seams.real_time import monotonic_ns
from dumps.record.seams.response_tap import MAX_HEAD, ResponseTap, shaped
from dumps.record.secrets import BodyScrubber, Span, removed, scrub_header, scrub_text, scrub_url
from dumps.record.stacks import call_site
from dumps.schema import state_pb2 as pb

GIVEN_UP = "closed by this program before the response was complete"
MAX_MESSAGE = 1000  # characters of an error's message

_DEFAULT_PORTS = {"http": 80, "https": 443}
_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class Asker:
    """Who makes a request, for libraries that write it from a task of their own."""

    task: str
    call_site: Sequence[pb.Frame]

    @classmethod
    def here(cls) -> Asker:
        """The running task or thread, and where it stands. Never raises: seams call it in the program's way."""
        try:
            return cls(task_name(), call_site())
        except Exception:
            return cls("", ())


@dataclass(slots=True, eq=False)
class _Open:
    """An exchange of which a part is still to come."""

    exchange: pb.Exchange
    response: ResponseTap | None = None  # once the request's head is there
    counted: bool = False
    body_kept: int = 0  # bytes of the body that the exchange shows


def _harmless(method: Callable[Concatenate[HttpTap, _P], None]) -> Callable[Concatenate[HttpTap, _P], None]:
    """What goes wrong in here ends the recording of this connection, and nothing else."""

    @functools.wraps(method)
    def call(self: HttpTap, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if self.stopped:
            return
        try:
            with self._log.lock:
                method(self, *args, **kwargs)
        except Exception as error:
            self._stop(f"not followed further: {type(error).__name__}: {failure_message(error)}")

    return call


class HttpTap:
    """One connection. ``host`` and ``port`` are what the program asked for, not where a proxy or the DNS led.

    Every method takes the monotonic time in ns at which its event happened, the present one if it is left out. Where
    the loop reads the connection, ``in_turns``, all that comes in one turn of it has that turn's time. None of them
    raises. ``stopped`` is true once the tap does not follow its connection any more.
    """

    def __init__(
        self, log: WorldLog, *, client: str, scheme: str, host: str, port: int, in_turns: bool = False
    ) -> None:
        self._log = log
        self.in_turns = in_turns
        self._read_ns: Callable[[], int] = turn_ns if in_turns else monotonic_ns
        self._full = log.level is RecordLevel.FULL
        self._client = client
        self.scheme, self.host, self.port = scheme, host, port
        self.tunnel: tuple[str, int] | None = None
        self.stopped = False
        self._handshake = False
        self._asker: Asker | None = None
        self._connecting: _Open | None = None  # its request is still to come
        self._requests = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._writing: _Open | None = None  # its request is being sent
        self._body = bytearray()
        self._body_spans: list[Span] = []
        self._scrubber = BodyScrubber()
        self._write_error: Exception | None = None
        self._waiting: deque[_Open] = deque()  # for their responses, in the order of their requests

    @_harmless
    def asked_by(self, asker: Asker) -> None:
        """The next request is this one's."""
        self._asker = asker

    @_harmless
    def connecting(self, at_ns: int | None = None) -> None:
        """The connection is asked for."""
        self._connecting = self._begin(at_ns or monotonic_ns())
        self._show_address()

    @_harmless
    def securing(self) -> None:
        """TLS begins on the connection, which was opened without."""
        self.scheme, self._handshake = "https", True
        self._show_address()

    @_harmless
    def connected(self, at_ns: int | None = None) -> None:
        """The connection stands, for TLS after its handshake."""
        self._handshake = False
        if self._connecting is not None:
            exchange = self._connecting.exchange
            exchange.connect_ns = max(0, (at_ns or self._read_ns()) - exchange.started_ns)

    @_harmless
    def connect_failed(self, kind: str, message: str, at_ns: int | None = None) -> None:
        """No connection came about: "dns", "refused", "timeout", "tls" or "reset"."""
        if self._connecting is not None:
            at_ns = at_ns or self._read_ns()
            self._connecting.exchange.connect_ns = max(0, at_ns - self._connecting.exchange.started_ns)
            self._end(self._connecting, at_ns, kind, message)
            self._connecting = None

    @_harmless
    def connect_raised(self, error: BaseException, *, otherwise: str = "refused") -> None:
        """As `connect_failed`. An error from outside, such as a cancelled task, is this program giving up."""
        if is_failure(error):
            self.connect_failed(failure_kind(error, otherwise=otherwise), failure_message(error))
        elif self._connecting is not None:
            self.connect_failed("", GIVEN_UP)

    def tls_raised(self, error: BaseException) -> None:
        """As `connect_raised`, for a handshake."""
        self.connect_raised(error, otherwise="tls")

    @_harmless
    def sent(self, data: Any, at_ns: int | None = None) -> None:
        """The program hands down bytes of a request. To be told before they are written, so that none is missed."""
        at_ns = at_ns or monotonic_ns()
        rest = bytes(memoryview(data))
        while rest:
            rest = self._parse_request(rest, at_ns)

    @_harmless
    def flushed(self, at_ns: int | None = None) -> None:
        """What was `sent` last has been written."""
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last is not self._writing and last.response is not None and not last.response.begun:
            last.exchange.sent_ns = at_ns or monotonic_ns()

    @_harmless
    def write_raised(self, error: BaseException) -> None:
        """Writing failed. A response may still be there to be read: this counts when the connection is closed."""
        if is_failure(error):
            self._write_error = error

    @_harmless
    def received(self, data: Any, at_ns: int | None = None) -> None:
        """The socket gave these bytes at once."""
        at_ns = at_ns or self._read_ns()
        data = bytes(memoryview(data))
        while data and not self.stopped:
            if not self._waiting or (response := self._waiting[0].response) is None:
                self._log.lost["unasked_responses"] += 1
                return
            data = data[response.feed(data, at_ns) :]
            if response.unreadable and not self._waiting[0].exchange.error_message:
                self._log.lost["unreadable_connections"] += 1
                self._waiting[0].exchange.error_message = _cut(f"not HTTP/1.x: {response.unreadable}")
            if response.upgraded:
                self._log.lost["upgrades"] += 1
                self._end(self._waiting.popleft(), at_ns, "", "")
                self.stopped = True
            elif response.complete:
                self._end(self._waiting.popleft(), at_ns, "", "")

    def was_read(self, data: Any) -> None:
        """What a read gave: `received`, or `peer_closed` for nothing."""
        if data:
            self.received(data)
        else:
            self.peer_closed()

    @_harmless
    def peer_closed(self, at_ns: int | None = None) -> None:
        """End of file from the socket."""
        at_ns = at_ns or self._read_ns()
        if self._waiting and (response := self._waiting[0].response) is not None:
            response.feed_eof()
            if response.complete:
                self._end(self._waiting.popleft(), at_ns, "", "")
        self._break(at_ns, "closed", "the peer closed the connection")

    @_harmless
    def closed(self, at_ns: int | None = None) -> None:
        """This program closed the connection."""
        if self._handshake:  # what ended it is still to be told
            return
        self._drop_unused()
        if (error := self._write_error) is not None:
            self._break(at_ns or monotonic_ns(), failure_kind(error, otherwise="reset"), failure_message(error))
        self._end_all(at_ns or monotonic_ns(), "", GIVEN_UP)

    @_harmless
    def failed(self, kind: str, message: str, at_ns: int | None = None) -> None:
        """The connection failed: "reset", "timeout", "tls" or "closed"."""
        self._break(at_ns or self._read_ns(), kind, message)

    @_harmless
    def raised(self, error: BaseException) -> None:
        """As `failed`, for what reading or writing raised; nothing for an error that comes from outside."""
        if is_failure(error):
            self.failed(failure_kind(error, otherwise="reset"), failure_message(error))

    def _begin(self, at_ns: int) -> _Open:
        exchange = self._log.add_exchange() or pb.Exchange()  # without room it is followed all the same, unseen
        exchange.started_ns, exchange.client = at_ns, self._client
        one = _Open(exchange)
        self._attribute(one, self._asker or Asker.here())
        return one

    def _attribute(self, one: _Open, asker: Asker) -> None:
        one.exchange.task = asker.task
        del one.exchange.call_site[:]
        one.exchange.call_site.extend(asker.call_site)

    def _show_address(self) -> None:
        if self._connecting is not None:
            self._connecting.exchange.url = scrub_url(f"{self.scheme}://{self._bracketed()}:{self.port}")

    def _parse_request(self, data: bytes, at_ns: int) -> bytes:
        """Read on in one request; returns what came after it."""
        if self._writing is None:
            asker, self._asker = self._asker, None
            self._writing = self._connecting or self._begin(at_ns)
            if asker is not None:
                self._attribute(self._writing, asker)
            self._connecting = None
        try:
            self._requests.receive_data(data)
            while True:
                event = self._requests.next_event()
                if isinstance(event, h11.Request):
                    self._take_head(self._writing, event)
                elif isinstance(event, h11.Data):
                    self._take_body(self._writing, bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:
                    self._show_body(self._writing, all_of_it=False)
                    return b""
        except h11.ProtocolError as error:
            self._stop(f"not HTTP/1.x: {error}")
            return b""
        rest = self._requests.trailing_data[0]
        self._requests = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._end_of_request(self._writing, at_ns)
        self._writing = None
        return rest

    def _take_head(self, one: _Open, event: h11.Request) -> None:
        if not event.http_version.startswith(b"1."):
            raise h11.RemoteProtocolError(f"HTTP/{event.http_version.decode()}")
        exchange, target = one.exchange, event.target.decode("latin-1")
        if event.method == b"CONNECT":
            self._log.drop_exchange(exchange)
            self._log.lost["tunnels"] += 1
            host, _, port = target.rpartition(":")
            self.tunnel = host.strip("[]"), int(port)
            self.stopped = True
            return
        url = target if "://" in target.partition("?")[0] else self._origin() + target
        exchange.method = event.method.decode("latin-1")
        exchange.url = scrub_url(url if self._full else url.partition("?")[0])
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items()]
        for name, value in headers:
            exchange.request_headers.add(key=name, value=shaped(scrub_header(name, value), full=self._full))
        named = {name.lower(): value for name, value in headers}
        self._body, self._body_spans = bytearray(), []
        self._scrubber = BodyScrubber(named.get("content-type", ""), named.get("content-encoding", ""))
        offered = named.get("upgrade", "").encode("latin-1")
        one.response = ResponseTap(self._log, exchange, method=event.method, upgrade=offered)
        self._waiting.append(one)

    def _take_body(self, one: _Open, data: bytes) -> None:
        if not self._full or self._scrubber.hidden or not one.exchange.id:
            return
        if not self._log.has_room(len(data)):
            self._log.lost["exchange_bytes"] += len(data)
            return
        self._body += data
        self._body_spans += self._scrubber.feed(data)

    def _show_body(self, one: _Open, *, all_of_it: bool) -> None:
        """Let the exchange show the body so far. A long one is copied when it has grown by an eighth, not each time."""
        if self._scrubber.hidden:
            if not one.exchange.error_message:
                self._log.lost["hidden_bodies"] += 1
                one.exchange.error_message = "body not kept: compressed, with a secret in it or unreadable"
            one.exchange.request_body = b""
        elif all_of_it or len(self._body) > one.body_kept * 9 // 8:
            one.exchange.request_body = removed(bytes(self._body), self._body_spans)
            one.body_kept = len(self._body)

    def _end_of_request(self, one: _Open, at_ns: int) -> None:
        if self.stopped:
            return
        self._show_body(one, all_of_it=True)
        one.exchange.sent_ns = at_ns
        self._count(one)

    def _count(self, one: _Open) -> None:
        """Among requests of its task with the same key. Its key is known when the request is, or will be no further."""
        if not one.counted and one.exchange.method:
            one.counted = True
            one.exchange.occurrence = self._log.next_occurrence(one.exchange.task, match_key(one.exchange))

    def _drop_unused(self) -> None:
        """A connection on which nothing was asked is no exchange."""
        if self._connecting is not None:
            self._log.drop_exchange(self._connecting.exchange)
            self._connecting = None

    def _break(self, at_ns: int, kind: str, message: str) -> None:
        """The connection is of no more use; what the program still writes into it is no request."""
        self._drop_unused()
        self._end_all(at_ns, kind, message)
        self.stopped = True

    def _end_all(self, at_ns: int, kind: str, message: str) -> None:
        """Every exchange that is open. One whose head was not written is in none of the lists but ``_writing``."""
        if self._writing is not None:
            one, self._writing = self._writing, None
            self._show_body(one, all_of_it=True)
            if one not in self._waiting and not one.exchange.HasField("ended_ns"):
                self._end(one, at_ns, kind, message)
            self._requests = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        while self._waiting:
            self._end(self._waiting.popleft(), at_ns, kind, message)

    def _end(self, one: _Open, at_ns: int, kind: str, message: str) -> None:
        exchange = one.exchange
        exchange.ended_ns = at_ns
        exchange.error = kind
        if message and not exchange.error_message:
            exchange.error_message = scrub_text(_cut(message))
        if one is not self._writing:
            self._count(one)

    def _stop(self, reason: str) -> None:
        """Follow this connection no further, and say so in what is open."""
        with self._log.lock:
            self.stopped = True
            self._log.lost["unreadable_connections"] += 1
            for one in {*self._waiting, *filter(None, [self._writing, self._connecting])}:
                one.exchange.error_message = _cut(scrub_text(reason))

    def _origin(self) -> str:
        port = "" if _DEFAULT_PORTS.get(self.scheme) == self.port else f":{self.port}"
        return f"{self.scheme}://{self._bracketed()}{port}"

    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host


def _cut(message: str) -> str:
    return utf8(message)[:MAX_MESSAGE]
