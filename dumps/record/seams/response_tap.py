"""One response as it comes off a connection: where it ends, its head, and its bytes without the secrets in them."""

from __future__ import annotations

import h11

from dumps.record.recorder import RecordLevel
from dumps.record.seams.kept_chunks import KeptChunks
from dumps.record.seams.log import WorldLog
from dumps.record.secrets import LOOKBACK, BodyScrubber, HeadScrubber, Span, mask_header, masked
from dumps.schema import state_pb2 as pb

MAX_HEAD = 256 * 1024  # bytes of a head that a parser is willing to hold
_SLICE = 4096  # bytes given to the parser at once: what it has not taken yet is copied after each of its events


class ResponseTap:
    """Follows the response to one request of ``method``; ``upgrade`` is what the request offered, or empty.

    A parser of the bytes as they come finds the end. Where it cannot read them, ``unreadable`` says why; the bytes
    after that are kept as they come, since the program's own parser meets them too.
    """

    def __init__(self, log: WorldLog, exchange: pb.Exchange, *, method: bytes, upgrade: bytes) -> None:
        self._log, self._exchange = log, exchange
        self._full = log.level is RecordLevel.FULL
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        offer = [(b"upgrade", upgrade), (b"connection", b"upgrade")] if upgrade else []
        self._parser.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"-"), *offer]))
        self._parser.send(h11.EndOfMessage())
        self._seen = 0  # bytes of this response so far
        self._head = HeadScrubber()
        self._head_end: int | None = None  # on the wire, as every place here that says no other
        self._body = BodyScrubber()
        self._body_seen = 0
        self._places: list[tuple[int, int, int]] = []  # (place in the body, place on the wire, length), the latest
        self._chunks = KeptChunks(exchange)
        self._last_ns: int | None = None
        self._hidden = False
        self.unreadable = ""
        self.complete = False
        self.upgraded = False

    @property
    def begun(self) -> bool:
        return self._seen > 0

    def feed(self, data: bytes, at_ns: int) -> int:
        """Take from ``data`` what belongs to this response, as one chunk; how many bytes that is."""
        before = self._seen
        spans = [] if self.unreadable else self._parse(data)
        if self.unreadable:
            spans += self._unparsed(data[self._seen - before :])
        self._add_chunk(data[: self._seen - before], before, spans, at_ns)
        return self._seen - before

    def feed_eof(self) -> None:
        """The peer closed: the end of a response that says no other. ``complete`` stays false for one that was cut."""
        if self.unreadable or self.complete or self.upgraded:
            return
        try:
            self._parser.receive_data(b"")
            self.complete = isinstance(self._parser.next_event(), h11.EndOfMessage)
        except h11.ProtocolError:
            pass

    def _parse(self, data: bytes) -> list[Span]:
        """Spans to mask; moves ``_seen`` to the end of what belongs to this response, or before what is unreadable."""
        spans: list[Span] = []
        for at in range(0, len(data), _SLICE):
            piece = data[at : at + _SLICE]
            start, in_head = self._seen, self._head_end is None
            try:
                self._parser.receive_data(piece)
                bodies = self._events(start + len(piece))
            except (h11.ProtocolError, ValueError) as error:
                self._found_unreadable(str(error) or type(error).__name__)
                return spans
            if in_head:
                spans += self._head.feed(piece if self._head_end is None else piece[: self._head_end - start])
            spans += self._in_body(bodies)
            if self.complete or self.upgraded:
                break
            self._seen = start + len(piece)
        return spans

    def _events(self, fed: int) -> list[tuple[int, bytes]]:
        """The body's parts in what the parser holds, each with its place on the wire."""
        bodies: list[tuple[int, bytes]] = []
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return bodies
            place = fed - len(self._parser.trailing_data[0])
            if isinstance(event, h11.InformationalResponse | h11.Response):
                self._exchange.status = event.status_code
                if isinstance(event, h11.InformationalResponse) and event.status_code != 101:
                    continue  # its bytes count as the head of the one that follows
                self._take_head(event, place)
                if event.status_code == 101:
                    self.upgraded, self._seen = True, place
                    return bodies
            elif isinstance(event, h11.Data):
                bodies.append((place - len(event.data), bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                self.complete, self._seen = True, place
                return bodies

    def _take_head(self, event: h11.Response | h11.InformationalResponse, place: int) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items()]
        for name, value in headers:
            self._exchange.response_headers.add(key=name, value=shaped(mask_header(name, value), full=self._full))
        named = {name.lower(): value for name, value in headers}
        self._body = BodyScrubber(named.get("content-type", ""), named.get("content-encoding", ""))
        self._head_end = place

    def _in_body(self, parts: list[tuple[int, bytes]]) -> list[Span]:
        """Secrets of parts of the body, given with their places on the wire, as spans on the wire."""
        if not self._full or not parts:
            return []
        self._places = [one for one in self._places if one[0] + one[2] > self._body_seen - LOOKBACK]
        for place, data in parts:
            self._places.append((self._body_seen, place, len(data)))
            self._body_seen += len(data)
        spans = self._body.feed(b"".join(data for _, data in parts))
        return [
            (wire + max(start, at) - at, wire + min(end, at + length) - at)
            for start, end in spans
            for at, wire, length in self._places
            if start < at + length and at < end
        ]

    def _found_unreadable(self, reason: str) -> None:
        self.unreadable = reason
        if self._body.compressed:
            self._hide("not kept: a compressed body that cannot be read")

    def _unparsed(self, data: bytes) -> list[Span]:
        """Secrets in bytes that no parser reads: as a head, if none was read before, and as more of the body."""
        place = self._seen
        self._seen += len(data)
        head = self._head.feed(data) if self._head_end is None else []
        return head + self._in_body([(place, data)])

    def _add_chunk(self, data: bytes, start: int, spans: list[Span], at_ns: int) -> None:
        if not data or not self._exchange.id:  # no room for it in the log
            return
        since = self._last_ns or self._exchange.sent_ns or self._exchange.started_ns
        self._last_ns = at_ns
        if self._full and self._body.hidden:
            self._hide("not kept: a compressed body with a secret in it, or one that cannot be read")
        kept = b""
        if self._full and not self._hidden:
            self._chunks.mask_before(start, spans)
            if self._log.has_room(len(data)):
                kept = masked(data, [(first - start, end - start) for first, end in spans])
            else:
                self._log.lost["exchange_bytes"] += len(data)
        self._chunks.add(kept, start=start, size=len(data), delay_ns=max(0, at_ns - since))

    def _hide(self, reason: str) -> None:
        """Keep nothing of what came and comes but its sizes."""
        if self._hidden:
            return
        self._hidden = True
        self._log.lost["hidden_bodies"] += 1
        self._exchange.error_message = reason
        self._chunks.hide()


def shaped(value: str, *, full: bool) -> str:
    """A header's value; below level full without the query of a URL in it."""
    return value if full or "://" not in value else value.partition("?")[0]
