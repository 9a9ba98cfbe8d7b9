"""Exchanges of a program with the world, redacted.

Without ``prompt`` a replay of the program still needs them: secrets go, as at recording. For ``prompt`` only their
shape stays: who asked when, sizes and times of what came, and which requests were the same. A request's URL then is a
hash of its match key, made with a key that is thrown away, so equal requests still match and others do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from urllib.parse import urlsplit

import h11

from dumps.exchanges.match_key import MatchKey, match_key
from dumps.record.recorder import RecordLevel
from dumps.record.seams.log import LogLimits, WorldLog
from dumps.record.seams.response_tap import ResponseTap
from dumps.record.secrets import (
    BodyScrubber,
    HeadScrubber,
    mask_header,
    masked,
    scrub_body,
    scrub_header,
    scrub_url,
    text_spans,
)
from dumps.redact.changes import Changes
from dumps.redact.labels import is_term
from dumps.schema import state_pb2 as pb

SECRET = "a secret"
NO_TEXT = "text of people"
NEEDED = "a replay needs it"
SCHEMES = ("http", "https", "ws", "wss")
SHAPE_HEADERS = frozenset({"content-type", "content-length", "content-encoding", "transfer-encoding", "connection"})


def keep_requests(exchange: pb.Exchange, changes: Changes) -> None:
    """Take the secrets out of one exchange."""
    _set(exchange, "url", scrub_url(exchange.url), "exchanges[].url", changes)
    named = {header.key.lower(): header.value for header in exchange.request_headers}
    for header in exchange.request_headers:
        _set(header, "value", scrub_header(header.key, header.value), "exchanges[].request_headers[].value", changes)
    encoding = named.get("content-encoding", "")
    body = scrub_body(exchange.request_body, content_type=named.get("content-type", ""), content_encoding=encoding)
    _set(exchange, "request_body", body or b"", "exchanges[].request_body", changes)
    _mask_chunks(exchange, changes)
    for header in exchange.response_headers:
        _set(header, "value", mask_header(header.key, header.value), "exchanges[].response_headers[].value", changes)
    for chunk in exchange.request_chunks:
        if chunk.data:  # their bytes stand in the body
            changes.add("exchanges[].request_chunks[].data", "removed", NO_TEXT, chunk.data)
            chunk.data = b""


def keep_shape(exchange: pb.Exchange, key: bytes, changes: Changes) -> None:
    """Take all text out of one exchange."""
    if exchange.url:
        made_up = _shape_of(exchange, key)
        changes.add("exchanges[].url", "hashed", NO_TEXT, exchange.url)
        exchange.url = made_up
    for path, headers in (("request", exchange.request_headers), ("response", exchange.response_headers)):
        for header in headers:
            if header.value and not (header.key.lower() in SHAPE_HEADERS and is_term(header.value)):
                changes.add(f"exchanges[].{path}_headers[].value", "removed", NO_TEXT, header.value)
                header.value = ""
    if exchange.request_body:
        changes.add("exchanges[].request_body", "removed", NO_TEXT, exchange.request_body)
        exchange.request_body = b""
    for path, chunks in (("chunks", exchange.chunks), ("request_chunks", exchange.request_chunks)):
        for chunk in chunks:
            if chunk.data:
                changes.add(f"exchanges[].{path}[].data", "removed", NO_TEXT, chunk.data)
                chunk.size, chunk.data = len(chunk.data), b""


def number_again(exchanges: Iterable[pb.Exchange]) -> None:
    """Tell requests apart that a removed secret has made equal: count them anew where two have one number."""
    groups: dict[tuple[str, MatchKey], list[pb.Exchange]] = {}
    for exchange in exchanges:
        if exchange.direction == "out" and exchange.method and exchange.sent_ns:
            groups.setdefault((exchange.task, match_key(exchange)), []).append(exchange)
    for same in groups.values():
        if max(Counter(one.occurrence for one in same).values()) > 1:
            for number, exchange in enumerate(same):
                exchange.occurrence = number


def _shape_of(exchange: pb.Exchange, key: bytes) -> str:
    scheme, host = "http", exchange.url
    try:
        parts = urlsplit(exchange.url)
        host = parts.netloc
        scheme = parts.scheme if parts.scheme in SCHEMES else scheme
    except ValueError:
        pass
    base = f"{scheme}://{_digest(key, 'host', host)[:8]}.invalid"
    if not exchange.method:
        return base
    one = match_key(exchange)
    return f"{base}/{_digest(key, one.method, one.url, one.body_kind, one.body)}"


def _digest(key: bytes, *parts: str | bytes) -> str:
    digest = blake2b(digest_size=16, key=key)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _mask_chunks(exchange: pb.Exchange, changes: Changes) -> None:
    before = [chunk.data for chunk in exchange.chunks]
    if not any(before):
        return
    after = _tapped(exchange) if exchange.framing == "wire" else None
    after = _masked_as_body(exchange, before) if after is None else after
    for chunk, old, new in zip(exchange.chunks, before, after, strict=True):
        if old != new:
            changes.add("exchanges[].chunks[].data", "removed", SECRET, old)
            chunk.data = new
        elif old:
            changes.keep("exchanges[].chunks[].data", NEEDED, old)


def _tapped(exchange: pb.Exchange) -> list[bytes] | None:
    """The chunks as the recorder's own tap keeps them; None where it does not take all of their bytes."""
    total = sum(len(chunk.data) for chunk in exchange.chunks)
    log = WorldLog(level=RecordLevel.FULL, limits=LogLimits(bytes=total))
    copy = pb.Exchange(id="x", direction=exchange.direction, framing=exchange.framing)
    try:
        tap = ResponseTap(log, copy, method=exchange.method.encode("ascii", "replace") or b"GET", upgrade=b"")
        if not all(tap.feed(chunk.data, 0) == len(chunk.data) for chunk in exchange.chunks):
            return None
    except h11.ProtocolError:
        return None
    kept = iter(copy.chunks)
    return [next(kept).data if chunk.data else b"" for chunk in exchange.chunks]


def _masked_as_body(exchange: pb.Exchange, chunks: list[bytes]) -> list[bytes]:
    named = {header.key.lower(): header.value for header in exchange.response_headers}
    scrubber = BodyScrubber(named.get("content-type", ""), named.get("content-encoding", ""))
    whole = b"".join(chunks)
    head = whole.find(b"\r\n\r\n") + 4 if exchange.framing == "wire" else 0
    spans = [(head + start, head + end) for start, end in scrubber.feed(whole[head:])]
    if scrubber.hidden:
        return [b""] * len(chunks)
    if not scrubber.compressed:
        spans += [(head + start, head + end) for start, end in text_spans(whole[head:])]
    spans += HeadScrubber().feed(whole[:head])
    clean, at, out = masked(whole, spans), 0, []
    for chunk in chunks:
        out.append(clean[at : at + len(chunk)])
        at += len(chunk)
    return out


def _set(message: pb.Exchange | pb.KeyValue, name: str, new: str | bytes, path: str, changes: Changes) -> None:
    old = getattr(message, name)
    if new != old:
        changes.add(path, "removed", SECRET, old)
        setattr(message, name, new)
    elif old:
        changes.keep(path, NEEDED, old)
