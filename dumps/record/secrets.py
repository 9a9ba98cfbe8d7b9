"""Secrets are taken out before anything reaches a recording, at every level.

What is removed:

* values of headers with a secret name. The scheme of an authorization and the names of cookies stay: a program's
  cookie jar works with a replaced value, and nobody can use it;
* values of query parameters and form fields (urlencoded and multipart) with a secret name, and a password in a URL;
* string values of JSON members with a secret name, also in JSON that stands escaped in a JSON string (the arguments of
  a tool call), in server-sent events and in lines of JSON;
* keys known by their form, wherever they stand in a URL, header, body or message: ``sk-...``, JSON web tokens, and
  those of GitHub, Slack, Google, AWS and Hugging Face.

A secret name is one that ends in one of SECRET_ENDINGS, written in any case and with any separators: "X-Api-Key",
"access_token", "clientSecret". Three names that end so are none: see HARMLESS. Where a body has shown "logprobs", its
members named "token" are text of a model.

What was sent is written anew: a removed value is REMOVED, so that a key of another length gives the same request. What
was received keeps its length, a removed byte is MASK: chunk boundaries and content-length stay true. A JSON web token
that came in one piece keeps its shape, too (`dumps.record.web_token`). A compressed body is looked into, and if it
holds a secret no byte of it is kept (`BodyScrubber.hidden`); nor is one that cannot be read.

Not removed: secrets without such a name or form (in a path, in prose, in base64 of a whole document).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol
from urllib.parse import unquote_to_bytes

import zstandard

from dumps.record import web_token

MASK = b"x"
REMOVED = b"REMOVED"
SECRET_ENDINGS = (
    "apikey", "token", "password", "passwd", "pwd", "passphrase", "secret", "secretkey", "privatekey", "accesskey",
    "accesskeyid", "credential", "credentials", "authorization", "cookie", "signature", "jwt", "sessionid",
)  # fmt: skip
HARMLESS = frozenset({"bostoken", "eostoken", "padtoken", "unktoken", "stoptoken", "masktoken", "septoken", "clstoken"})
"""Names of a tokenizer's special tokens."""

LOOKBACK = 512
"""A span that a scrubber returns begins at most so many bytes before the piece that it was given."""

Span = tuple[int, int]
"""Start and end of a secret, in bytes from the start of what was scanned."""

_ONE_READ = 1024
_FORMS = re.compile(
    rb"(?<![A-Za-z0-9_-])(?:"
    rb"sk-[A-Za-z0-9_-]{16,}|eyJ[A-Za-z0-9_-]{8,}\.(?:eyJ[A-Za-z0-9_-]+|[A-Za-z0-9_-]{8,}\.)[A-Za-z0-9_.-]*|"
    rb"gh[pousr]_[A-Za-z0-9]{30,}|"
    rb"github_pat_[A-Za-z0-9_]{30,}|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,}|(?:AKIA|ASIA)[A-Z0-9]{16}|"
    rb"hf_[A-Za-z0-9]{30,})"
)
_FORM_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_FORM_GOES_ON = re.compile(rb"[A-Za-z0-9_.-]*")
_NAME = rb"[^\"\\\s=&;?#/:,{}\[\]<>']{1,64}"
_JSON_MEMBER = re.compile(rb'(\\{0,7})"([^"\\\n]{1,64})\1"\s{0,8}:\s{0,8}\1"')
_FIELD = re.compile(rb"(?:\A|(?<=[&;]))([^=&;\s]{1,64})=")
_PART = re.compile(
    rb'form-data;[^\r\n]{0,64}?\bname="?([^"\r\n;]{1,64})"?[^\r\n]{0,200}\r\n(?:[^\r\n]{1,200}\r\n){0,5}\r\n'
)
_PARAMETER = re.compile(rb"(?:\A|(?<=[?&;,\s#({\"']))(" + _NAME + rb")=")
_SAID = re.compile(rb"(?:\A|(?<=[?&;,\s#({\"']))(" + _NAME + rb")[\"']?\s{0,4}:\s{0,4}[\"']?(?=[^\s/\"'])")
_SUSPECT = re.compile(
    rb"[=@]|sk-|eyJ|gh[pousr]_|github_pat|xox|AIza|AKIA|ASIA|hf_|bearer|basic|key|token|passw|pwd|phrase|secret|"
    rb"credential|authorization|cookie|signature|jwt|session",
    re.IGNORECASE,
)
_SCHEME = re.compile(rb"\b(?:bearer|basic)\s+(?=[A-Za-z0-9._~+/-]{16,}={0,2}(?:[\s,;\"']|\Z))", re.IGNORECASE)
_USER = re.compile(rb"(?<=//)([^/?#@\s:]*):([^/?#@\s]+)@")
_LOGPROBS = re.compile(rb'"(?:top_)?logprobs\\*"\s*:\s*[\[{]')
_VALUE = re.compile(rb"[^&\s\"'<>#;,)}\]]*")
_FIELD_VALUE = re.compile(rb"[^&\r\n]*")
_PART_VALUE = re.compile(rb"[^\r]*")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_COOKIE = re.compile(rb"\s*([^=;]*)(=?)([^;]*)(?:;|\Z)")


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Whether the value of a header, parameter, field or JSON member of this name is a secret."""
    bare = "".join(letter for letter in name.lower() if letter.isalnum())
    return bare == "sig" or (bare.endswith(SECRET_ENDINGS) and bare not in HARMLESS)


def scrub_url(url: str) -> str:
    """``url`` with its secrets REMOVED: those of the query, of the fragment and a password before the host."""
    return _text(url, text_spans)


def scrub_text(text: str) -> str:
    """An error message or other prose with its secrets REMOVED."""
    return _text(text, text_spans)


def scrub_header(name: str, value: str) -> str:
    """The value of a request's header with its secrets REMOVED."""
    return _text(value, lambda data: header_spans(name, data))


def mask_header(name: str, value: str) -> str:
    """The value of a response's header, its secrets masked at their length in Latin-1, as on the wire."""
    data = value.encode("latin-1", "replace")
    return masked(data, header_spans(name, data)).decode("latin-1")


def scrub_body(body: bytes, *, content_type: str = "", content_encoding: str = "") -> bytes | None:
    """The body of a request with its secrets REMOVED; None where nothing of it may be kept."""
    scrubber = BodyScrubber(content_type, content_encoding)
    spans = scrubber.feed(body)
    return None if scrubber.hidden else removed(body, spans)


def masked(data: bytes, spans: Iterable[Span]) -> bytes:
    """``data`` with MASK for each byte of ``spans``, web tokens in their shape. Spans may lie outside it in part."""
    out = bytearray(data)
    for start, end in _joined((max(start, 0), min(end, len(data))) for start, end in spans):
        out[start:end] = web_token.mask(data[start:end])
    return bytes(out)


def removed(data: bytes, spans: Iterable[Span]) -> bytes:
    """``data`` with REMOVED in place of each of ``spans``."""
    out, at = bytearray(), 0
    for start, end in _joined(spans):
        out += data[at:start] + REMOVED
        at = end
    return bytes(out + data[at:])


def text_spans(data: bytes) -> list[Span]:
    """Secrets in a URL, an error message or other prose."""
    if _SUSPECT.search(data) is None:
        return []
    spans = [match.span() for match in _FORMS.finditer(data)]
    spans += [match.span(2) for match in _USER.finditer(data)]
    for pattern in (_PARAMETER, _SAID):
        for match in pattern.finditer(data):
            if _is_secret(unquote_to_bytes(match[1])) and not (pattern is _SAID and match[1].lower() == b"token"):
                scheme = _SCHEME.match(data, match.end())
                spans.append(_VALUE.match(data, scheme.end() if scheme else match.end()).span())  # type: ignore[union-attr]
    for match in _SCHEME.finditer(data):
        spans.append(_VALUE.match(data, match.end()).span())  # type: ignore[union-attr]
    scanner = BodyScrubber("application/json")
    return _joined([*spans, *scanner.feed(data)])


def header_spans(name: str, value: bytes, *, arriving: bool = False) -> list[Span]:
    """Secrets in the value of one header. One that is still ``arriving`` may yet turn out to begin with a name."""
    lowered = name.lower()
    if lowered in ("cookie", "set-cookie"):
        spans = []
        for match in _COOKIE.finditer(value):
            if match[2] or (match[1] and not arriving):
                spans.append(match.span(3 if match[2] else 1))
            if lowered == "set-cookie":  # what follows are attributes: Path, Expires, HttpOnly
                break
        return _joined(spans)
    if is_secret_name(name):
        start = len(value) - len(value.lstrip())
        if lowered.endswith("authorization") and (space := value.find(b" ", start)) > 0:
            start = space + 1
        return _joined([(start, len(value.rstrip()))])
    return text_spans(value)


class HeadScrubber:
    """Finds secrets in the head of a response as its bytes arrive."""

    def __init__(self) -> None:
        self._line = b""
        self._at = 0  # where the line begins
        self._name = ""

    def feed(self, data: bytes) -> list[Span]:
        """Spans in bytes from the start of the head. A value that is cut is found again with what it goes on with."""
        spans: list[Span] = []
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            spans += self._in_line(line)
            self._at += len(line) + 1
        return spans + (self._in_line(self._line, arriving=True) if self._line else [])

    def _in_line(self, line: bytes, *, arriving: bool = False) -> list[Span]:
        if line[:1] in (b" ", b"\t"):  # an old way to go on with the value of the line before
            start = 0
        else:
            name, colon, _ = line.partition(b":")
            self._name = name.decode("latin-1") if colon and _TOKEN.fullmatch(name) else ""
            start = len(name) + 1
        if not self._name:
            return []
        value = line[start:].rstrip(b"\r")
        found = header_spans(self._name, value, arriving=arriving)
        return [(self._at + start + first, self._at + start + end) for first, end in found]


class _Decoder(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


class BodyScrubber:
    """Finds secrets in a body as its bytes arrive.

    Without a compression its spans say where they are. With one nothing can be replaced: ``hidden`` becomes true when
    a secret is found, or when the body cannot be read, and then no byte of the body may be kept.
    """

    def __init__(self, content_type: str = "", content_encoding: str = "") -> None:
        media_type = content_type.partition(";")[0].strip().lower()
        self._member, self._value, self._reach = _JSON_MEMBER, None, 160
        if media_type == "application/x-www-form-urlencoded":
            self._member, self._value, self._reach = _FIELD, _FIELD_VALUE, 80
        elif media_type.startswith("multipart/"):
            self._member, self._value, self._reach = _PART, _PART_VALUE, LOOKBACK
        self._may_be_json = self._member is _FIELD  # urllib and curl call every body a form
        encodings = [name.strip().lower() for name in content_encoding.split(",")]
        encodings = [name for name in encodings if name not in ("", "identity")]
        self.compressed = bool(encodings)
        self._decoder = _decoder(encodings)
        self.hidden = self.compressed and self._decoder is None
        self._tail = b""  # of what was seen, for names and keys that are cut
        self._at = 0  # bytes seen
        self._logprobs = False
        self._goes_on: Callable[[bytes, int], int] | None = None  # finds the end of the secret that is arriving
        self._depth = 0  # backslashes before the quotes of the JSON in which it stands
        self._run = 0  # backslashes just seen
        self._held = 0  # of them, those that may belong to a quote which is still to come

    def feed(self, data: bytes) -> list[Span]:
        """Spans in bytes from the start of the body, none further back than LOOKBACK before ``data``."""
        if self.hidden or not data:
            return []
        if self._decoder is None:
            return self._scan(data)
        for at in range(0, len(data), _ONE_READ):  # in small parts: a few bytes may grow to very many
            try:
                plain = self._decoder.decompress(data[at : at + _ONE_READ])
            except (zlib.error, zstandard.ZstdError, EOFError):
                self.hidden = True
                return []
            if plain and self._scan(plain):
                self.hidden = True
                return []
        return []

    def _scan(self, data: bytes) -> list[Span]:
        if self._may_be_json and (first := data.lstrip()[:1]):
            self._may_be_json = False
            if first in (b"{", b"["):
                self._member, self._value, self._reach = _JSON_MEMBER, None, 160
        spans: list[Span] = []
        window = self._tail + data
        origin = self._at - len(self._tail)
        at = len(self._tail)
        if self._member is _JSON_MEMBER and not self._logprobs:
            self._logprobs = _LOGPROBS.search(window) is not None
        while at < len(window):
            if self._goes_on is not None:
                at -= self._held
                end = self._goes_on(window, at)
                spans.append((origin + at, origin + end))
                if end + self._held == len(window):
                    break
                self._goes_on, at = None, end
            member = self._next_member(window, at)
            if member is None:
                break
            at = member
        self._at += len(data)
        key_so_far = len(window) - len(window.rstrip(_FORM_BYTES))
        self._tail = window[-min(LOOKBACK, max(self._reach, key_so_far + 1)) :]
        spans += self._known_forms(window, origin)
        return _joined(spans)

    def _next_member(self, window: bytes, at: int) -> int | None:
        """Where the next secret value begins, not before ``at``; what finds its end is then set."""
        for match in self._member.finditer(window, max(0, at - self._reach)):
            if match.end() <= at:
                continue
            if self._member is not _JSON_MEMBER:
                if _is_secret(unquote_to_bytes(match[1])):
                    self._goes_on = self._field_end
                    return match.end()
            elif _is_secret(match[2]) and not (self._logprobs and match[2] == b"token"):
                self._depth, self._run = len(match[1]), 0
                self._goes_on = self._string_end
                return match.end()
        return None

    def _field_end(self, window: bytes, at: int) -> int:
        assert self._value is not None
        match = self._value.match(window, at)
        return match.end() if match else at

    def _string_end(self, window: bytes, at: int) -> int:
        """The end of a JSON string: before its quote and the backslashes that belong to it, or before a line's end."""
        if self._held:
            self._held = self._run = 0
        for place in range(at, len(window)):
            byte = window[place]
            if byte == 0x5C:
                self._run += 1
            elif byte == 0x22 and (self._run <= self._depth if self._depth else self._run % 2 == 0):
                return max(at, place - self._depth)
            elif byte == 0x0A:
                return place
            else:
                self._run = 0
        self._held = min(self._run, len(window) - at) if self._depth else 0
        return len(window) - self._held

    def _known_forms(self, window: bytes, origin: int) -> list[Span]:
        spans = []
        for match in _FORMS.finditer(window):
            spans.append((origin + match.start(), origin + match.end()))
            if match.end() == len(window) and self._goes_on is None:
                self._goes_on = _form_end
        return spans


def _form_end(window: bytes, at: int) -> int:
    match = _FORM_GOES_ON.match(window, at)
    return match.end() if match else at


def _decoder(encodings: list[str]) -> _Decoder | None:
    if len(encodings) != 1:
        return None
    if encodings[0] in ("gzip", "x-gzip"):
        return zlib.decompressobj(31)
    if encodings[0] == "deflate":
        return _Deflate()
    if encodings[0] == "zstd":
        return zstandard.ZstdDecompressor().decompressobj()
    return None


class _Deflate:
    """Deflate comes with and without a header; the first byte says which."""

    def __init__(self) -> None:
        self._inflate: _Decoder | None = None

    def decompress(self, data: bytes, /) -> bytes:
        if self._inflate is None:
            self._inflate = zlib.decompressobj(15 if data[0] & 0x0F == 8 else -15)
        return self._inflate.decompress(data)


def _is_secret(name: bytes) -> bool:
    return is_secret_name(name.decode("utf-8", "replace"))


def _text(text: str, find: Callable[[bytes], list[Span]]) -> str:
    data = text.encode("utf-8", "backslashreplace")
    return removed(data, find(data)).decode("utf-8", "replace")


def _joined(spans: Iterable[Span]) -> list[Span]:
    """In order, without empty ones, those that overlap as one."""
    joined: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
