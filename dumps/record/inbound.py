"""Records one request that this process was asked, and its answer, as the server library tells of them.

It does no I/O of its own: the seam of a library says what arrives and what is sent, piece by piece, and an `Exchange`
of direction "in" grows in the log. Bodies are as the application sees them; secrets in them are masked at their length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec

from dumps.record.message_text import utf8
from dumps.record.recorder import RecordLevel
from dumps.record.seams.kept_chunks import KeptChunks
from dumps.record.seams.log import WorldLog
from dumps.record.seams.real_time import monotonic_ns
from dumps.record.seams.response_tap import shaped
from dumps.record.secrets import BodyScrubber, mask_header, masked, scrub_header, scrub_text, scrub_url
from dumps.schema import state_pb2 as pb

MAX_MESSAGE = 1000  # characters of an error's message
UNANSWERED = "the application sent no response"
HIDDEN = "not kept: a compressed body with a secret in it, or one that cannot be read"

Headers = Iterable[tuple[str, str]]
_P = ParamSpec("_P")


def _harmless(method: Callable[Concatenate[InboundTap, _P], None]) -> Callable[Concatenate[InboundTap, _P], None]:
    """What goes wrong in here is counted, and reaches neither the application nor its client."""

    @functools.wraps(method)
    def call(self: InboundTap, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            with self._log.lock:
                method(self, *args, **kwargs)
        except Exception:
            self._log.lost["recorder_errors"] += 1

    return call


class InboundTap:
    """One exchange. ``decoded`` says that the library hands bodies on with their content encoding removed.

    ``exchange`` has no id when the log had no room for it.
    """

    def __init__(self, log: WorldLog, *, server: str, decoded: bool = False) -> None:
        self._log, self._decoded = log, decoded
        self._full = log.level is RecordLevel.FULL
        self.exchange = log.add_exchange("in") or pb.Exchange()
        self.exchange.client = server
        self._kept = bool(self.exchange.id)
        self._request, self._response = BodyScrubber(), BodyScrubber()
        self._body = bytearray()
        self._shown = 0  # bytes of it that the exchange shows
        self._chunks = KeptChunks(self.exchange)  # of the response
        self._sent = 0  # bytes of the response's body
        self._arrived_ns = self._written_ns = 0

    @_harmless
    def asked(self, method: str, url: str, headers: Headers) -> None:
        """The request's head is there."""
        exchange, pairs = self.exchange, list(headers)
        exchange.method = utf8(method)
        exchange.url = scrub_url(utf8(url if self._full else url.partition("?")[0]))
        for name, value in pairs:
            exchange.request_headers.add(key=utf8(name), value=shaped(scrub_header(name, value), full=self._full))
        self._request = self._scrubber(pairs)

    @_harmless
    def received(self, data: bytes, *, last: bool = False) -> None:
        """A piece of the request's body arrived; ``last`` with the end of it."""
        now = monotonic_ns()
        if data and self._kept and not self.exchange.HasField("ended_ns"):
            since = self._arrived_ns or self.exchange.started_ns
            self.exchange.request_chunks.add(delay_ns=max(0, now - since), size=len(data))
            self._arrived_ns = now
            self._keep(data)
        if last and not self.exchange.sent_ns:
            self.exchange.sent_ns = now
            self._show(all_of_it=True)

    @_harmless
    def responded(self, status: int, headers: Headers) -> None:
        """The head of the response is sent."""
        exchange, pairs = self.exchange, list(headers)
        exchange.status = status
        del exchange.response_headers[:]
        for name, value in pairs:
            exchange.response_headers.add(key=utf8(name), value=shaped(mask_header(name, value), full=self._full))
        self._response = self._scrubber(pairs)

    @_harmless
    def sent(self, data: bytes) -> None:
        """A piece of the response's body is sent."""
        if not data or not self._kept or self.exchange.HasField("ended_ns"):
            return
        now, start = monotonic_ns(), self._sent
        since = self._written_ns or self.exchange.sent_ns or self.exchange.started_ns
        self._written_ns, self._sent = now, start + len(data)
        kept = b""
        if self._full and not _is_hidden(self._response):
            spans = self._response.feed(data)
            if _is_hidden(self._response):
                self._hide()
            elif not self._log.has_room(len(data)):
                self._log.lost["exchange_bytes"] += len(data)
            else:
                kept = masked(data, [(first - start, end - start) for first, end in spans])
            self._chunks.mask_before(start, spans)
        self._chunks.add(kept, start=start, size=len(data), delay_ns=now - since)

    @_harmless
    def ended(self, error: str = "", message: str = "") -> None:
        """It is over: sent to its end, or for ``error``, "closed" where the client is gone."""
        if self.exchange.HasField("ended_ns"):
            return
        self._show(all_of_it=True)
        self.exchange.ended_ns = monotonic_ns()
        self.exchange.error = error
        if message:
            self.exchange.error_message = utf8(scrub_text(message[:MAX_MESSAGE]))
        elif not self.exchange.status and not self.exchange.error_message:
            self.exchange.error_message = UNANSWERED

    @_harmless
    def raised(self, error: BaseException) -> None:
        """An exception left the application; the response may still come, from the server."""
        text = _text(error)
        self._show(all_of_it=True)  # the dump that is made next is all that a replay has of it
        self.exchange.error_message = utf8(scrub_text(text[:MAX_MESSAGE]))

    def _scrubber(self, headers: Headers) -> BodyScrubber:
        named = {name.lower(): value for name, value in headers}
        encoding = "" if self._decoded else named.get("content-encoding", "")
        return BodyScrubber(named.get("content-type", ""), encoding)

    def _keep(self, data: bytes) -> None:
        """Hold the request's body, and show it from time to time: it is copied each time."""
        if not self._full or _is_hidden(self._request):
            return
        start = len(self._body)
        spans = self._request.feed(data)
        if _is_hidden(self._request):
            self._body.clear()
            self.exchange.request_body = b""
            self._hide()
        elif not self._log.has_room(len(data)):
            self._log.lost["exchange_bytes"] += len(data)
        else:
            self._body += data
            for first, end in spans:
                self._body[first:end] = masked(bytes(self._body[first:end]), [(0, end - first)])
            if any(first < start for first, _ in spans):
                self._shown = 0
            self._show(all_of_it=False)

    def _show(self, *, all_of_it: bool) -> None:
        if all_of_it or len(self._body) > self._shown * 9 // 8:
            self.exchange.request_body = bytes(self._body)
            self._shown = len(self._body)

    def _hide(self) -> None:
        self._log.lost["hidden_bodies"] += 1
        self.exchange.error_message = HIDDEN
        if self._response.hidden:
            self._chunks.hide()


def _is_hidden(body: BodyScrubber) -> bool:
    """Whether nothing of it may be kept; each piece that it is fed can make it so."""
    return body.hidden


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {error}"
    except Exception:  # a program's own __str__
        return type(error).__qualname__
