"""The canonical form of a request: two spellings of one request have the same form, two requests never do.

Method, URL and body take part. Headers do not: they hold dates, trace ids, keys and the versions of libraries. A body
is read by what it is, as far as it can be read; one that cannot (damaged JSON, unknown encodings) is its bytes.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote_to_bytes, urlsplit

from dumps import strict_json
from dumps.schema import state_pb2 as pb

MAX_DECODED_BODY = 64 * 1024 * 1024
"""A compressed body that grows beyond this stays as it is."""

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_ESCAPE = re.compile(r"(%[0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PATH = "/:@!$&'()*+,;="
_EXACT_IN_A_DOUBLE = 2**53
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;,"]{1,200}))', re.IGNORECASE)

Pairs = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class CanonicalUrl:
    """An absolute URL in parts. ``port`` is None where it is the scheme's own; user name and fragment are dropped.

    ``query`` holds (name, value) sorted by name, equal names in the order sent, both percent-encoded in one way;
    a value is None where no "=" was written.
    """

    scheme: str
    host: str
    port: int | None
    path: str
    query: Pairs

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}" + (f":{self.port}" if self.port is not None else "")

    def __str__(self) -> str:
        return self.origin + self.path + (f"?{_join(self.query)}" if self.query else "")


@dataclass(frozen=True, slots=True)
class CanonicalBody:
    """``value`` is a JSON value for "json", sorted pairs for "form", parts for "multipart", else the bytes.

    ``data`` is the same as bytes: equal if, and only if, the bodies are the same one.
    """

    kind: Literal["json", "form", "multipart", "bytes"]
    value: Any
    data: bytes


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """``url`` is the text as recorded where it is no absolute URL."""

    method: str
    url: CanonicalUrl | str
    body: CanonicalBody


def canonical_request(exchange: pb.Exchange) -> CanonicalRequest:
    """The request of ``exchange``, whatever is in it: nothing here raises."""
    return CanonicalRequest(
        exchange.method, canonical_url(exchange.url), canonical_body(exchange.request_headers, exchange.request_body)
    )


def canonical_url(url: str) -> CanonicalUrl | str:
    """``url`` in parts; the text itself where it has no scheme and host, or a port that is no number."""
    if any(character <= " " for character in url):
        return url  # urlsplit would drop them without a word
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return url
    if not parts.scheme or not host:
        return url
    scheme = parts.scheme.lower()
    return CanonicalUrl(
        scheme,
        f"[{host.lower()}]" if ":" in host else host.lower(),
        None if port == _DEFAULT_PORTS.get(scheme) else port,
        _canonical_path(parts.path) or "/",
        _pairs(parts.query),
    )


def canonical_body(headers: Iterable[pb.KeyValue], body: bytes) -> CanonicalBody:
    """``body`` as the request's ``headers`` describe it. JSON objects and arrays are known without a header,
    and under that of a form too: urllib and curl write it where the program names none."""
    named = {header.key.lower(): header.value for header in headers}
    body = _decoded(body, named.get("content-encoding", ""))
    content_type = named.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json" or media_type.endswith("+json") or body.lstrip()[:1] in (b"{", b"["):
        try:
            value = strict_json.loads(body, of_float=_number)
        except strict_json.InvalidJson:
            pass
        else:
            return CanonicalBody("json", value, json_text(value).encode("ascii"))
    if media_type == "application/x-www-form-urlencoded":
        # A form is text of ASCII; latin-1 takes any byte, so that a wrong one is a difference and not an error.
        pairs = _pairs(body.decode("latin-1"))
        return CanonicalBody("form", pairs, _join(pairs).encode("ascii"))
    if media_type.startswith("multipart/") and (boundary := _BOUNDARY.search(content_type)):
        parts = _parts(body, (boundary[1] or boundary[2]).encode("utf-8"))
        if parts is not None:
            return CanonicalBody("multipart", parts, json.dumps([part.decode("latin-1") for part in parts]).encode())
    return CanonicalBody("bytes", body, body)


def json_text(value: Any) -> str:
    """One spelling for one JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _number(value: float) -> float | int:
    """1.0 and 1 are one number; above 2**53 a double no longer says which integer was meant."""
    return int(value) if value.is_integer() and abs(value) < _EXACT_IN_A_DOUBLE else value


def _canonical_path(path: str) -> str:
    """Escapes of unreserved characters undone, all others in upper case; what must be escaped is."""
    return "".join(
        _one_escape(piece) if at % 2 else quote(piece, safe=_PATH, errors="surrogatepass")
        for at, piece in enumerate(_ESCAPE.split(path))
    )


def _one_escape(escape: str) -> str:
    character = chr(int(escape[1:], 16))
    return character if character in _UNRESERVED else escape.upper()


def _pairs(query: str) -> Pairs:
    pairs = []
    for item in query.split("&"):
        if not item:
            continue
        name, equals, value = item.partition("=")
        pairs.append((_component(name), _component(value) if equals else None))
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def _component(text: str) -> str:
    return quote(unquote_to_bytes(text.replace("+", " ").encode("utf-8", "surrogatepass")), safe="")


def _join(pairs: Pairs) -> str:
    return "&".join(name if value is None else f"{name}={value}" for name, value in pairs)


def _parts(body: bytes, boundary: bytes) -> tuple[bytes, ...] | None:
    """What stands between the boundaries, the boundary's own text gone; None where the body has no such form."""
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--") or not all(p.startswith(b"\r\n") for p in pieces[1:-1]):
        return None
    parts = tuple(piece.removeprefix(b"\r\n") for piece in pieces[1:-1])
    around = pieces[0].removeprefix(b"\r\n"), pieces[-1].removeprefix(b"--").removeprefix(b"\r\n")
    return (*parts, *around) if any(around) else parts


def _decoded(body: bytes, encodings: str) -> bytes:
    """``body`` without its content encodings; as it is where one is unknown, damaged, or grows beyond the limit."""
    decoded = body
    for encoding in reversed([name.strip().lower() for name in encodings.split(",") if name.strip()]):
        windows: Mapping[str, tuple[int, ...]] = {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}
        if encoding == "identity":
            continue
        attempts = (_inflated(decoded, window) for window in windows.get(encoding, ()))
        found = next((attempt for attempt in attempts if attempt is not None), None)
        if found is None:
            return body
        decoded = found
    return decoded


def _inflated(data: bytes, window: int) -> bytes | None:
    inflate = zlib.decompressobj(window)
    try:
        inflated = inflate.decompress(data, MAX_DECODED_BODY)
    except zlib.error:
        return None
    return inflated if inflate.eof and not inflate.unused_data else None
