"""Secrets never reach a recording, however their bytes are cut."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dumps.record.secrets import (
    BodyScrubber,
    HeadScrubber,
    is_secret_name,
    mask_header,
    masked,
    removed,
    scrub_body,
    scrub_header,
    scrub_text,
    scrub_url,
)

SECRET = "hunter2-correct-horse"
KEY = "sk-proj-0123456789abcdefghijABCDEFGHIJ"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "Proxy-Authorization", "x-api-key", "api_key", "apiKey", "access_token", "clientSecret"),
        *("Set-Cookie", "X-Amz-Security-Token", "X-Amz-Signature", "sig", "password", "private_key", "PWD"),
    ],
)
def test_secret_names(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["max_tokens", "completion_tokens", "content-type", "design", "eos_token", "key", "q"])
def test_harmless_names(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("url", "scrubbed"),
    [
        (f"https://h/p?q=1&api_key={SECRET}&n=2", "https://h/p?q=1&api_key=REMOVED&n=2"),
        (f"https://h/p?access%5Ftoken={SECRET}#x", "https://h/p?access%5Ftoken=REMOVED#x"),
        (f"https://user:{SECRET}@h/p", "https://user:REMOVED@h/p"),
        (f"https://h/bots/{KEY}/send", "https://h/bots/REMOVED/send"),
        ("https://h/p?max_tokens=5&api_key=", "https://h/p?max_tokens=5&api_key="),
    ],
)
def test_urls(url, scrubbed):
    assert scrub_url(url) == scrubbed
    assert scrub_url(scrubbed) == scrubbed


@pytest.mark.parametrize(
    ("name", "value", "scrubbed"),
    [
        ("Authorization", f"Bearer {SECRET}", "Bearer REMOVED"),
        ("Authorization", SECRET, "REMOVED"),
        ("X-Api-Key", SECRET, "REMOVED"),
        ("Cookie", f"a={SECRET}; b=2", "a=REMOVED; b=REMOVED"),
        ("Set-Cookie", f"sid={SECRET}; Path=/; HttpOnly", "sid=REMOVED; Path=/; HttpOnly"),
        ("Set-Cookie", SECRET, "REMOVED"),
        ("Location", f"https://h/cb?code=1&token={SECRET}", "https://h/cb?code=1&token=REMOVED"),
        ("X-Other", f"key {KEY}", "key REMOVED"),
        ("WWW-Authenticate", 'Bearer realm="api", error="invalid_token"', 'Bearer realm="api", error="invalid_token"'),
        ("Content-Type", "text/html; charset=utf-8", "text/html; charset=utf-8"),
    ],
)
def test_headers(name, value, scrubbed):
    assert scrub_header(name, value) == scrubbed
    assert len(mask_header(name, value)) == len(value)
    assert SECRET not in mask_header(name, value)


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        (f"401 for https://h/p?token={SECRET}: denied", "401 for https://h/p?token=REMOVED denied"),
        (f"sent Authorization: Bearer {SECRET}", "sent Authorization: Bearer REMOVED"),
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: REMOVED."),
        (f'body {{"password": "{SECRET}"}}', 'body {"password": "REMOVED"}'),
        ("unexpected token: }", "unexpected token: }"),
        ("Cannot connect to host localhost:80", "Cannot connect to host localhost:80"),
    ],
)
def test_messages(text, scrubbed):
    assert scrub_text(text) == scrubbed


BODIES = [
    ("application/json", json.dumps({"a": 1, "api_key": SECRET, "b": [{"token": SECRET}], "q": "fine"}).encode()),
    ("application/json", json.dumps({"password": 'quo"te\\' + SECRET, "user": "bob"}).encode()),
    ("application/json", json.dumps({"arguments": json.dumps({"api_key": SECRET, "q": "x"}), "z": "kept"}).encode()),
    ("application/json", json.dumps({"text": f"use {KEY} or {TOKEN} now", "token": ""}).encode()),
    ("text/event-stream", b'data: {"session_token": "' + SECRET.encode() + b'"}\n\ndata: {"delta": "kept"}\n\n'),
    ("application/x-www-form-urlencoded", f"user=bob&password={SECRET}&n=1".encode()),
    (
        "multipart/form-data; boundary=B",
        f'--B\r\nContent-Disposition: form-data; name="token"\r\n\r\n{SECRET}\r\n--B\r\n'
        f'Content-Disposition: form-data; name="file"\r\n\r\nkept\r\n--B--\r\n'.encode(),
    ),
]


@pytest.mark.parametrize(("content_type", "body"), BODIES)
@given(data=st.data())
def test_a_body_is_masked_the_same_however_it_is_cut(content_type, body, data):
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=6).map(sorted))
    scrubber, spans = BodyScrubber(content_type), []
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        spans += scrubber.feed(body[start:end])
    whole = masked(body, BodyScrubber(content_type).feed(body))
    assert masked(body, spans) == whole
    assert len(whole) == len(body)
    for secret in (SECRET, KEY, TOKEN):
        assert secret.encode() not in whole
    assert whole.count(b"x") > 10
    if content_type in ("application/json", "text/event-stream"):
        for line in whole.removeprefix(b"data: ").split(b"\n\ndata: "):
            json.loads(line)  # still the JSON that it was, but for the values


@pytest.mark.parametrize(("content_type", "body"), BODIES)
def test_a_sent_body_is_written_anew_and_once(content_type, body):
    scrubbed = scrub_body(body, content_type=content_type)
    assert scrubbed is not None
    assert b"REMOVED" in scrubbed
    assert scrub_body(scrubbed, content_type=content_type) == scrubbed
    longer = body.replace(SECRET.encode(), SECRET.encode() * 2)
    assert scrub_body(longer, content_type=content_type) == scrubbed


@pytest.mark.parametrize("cuts", [[5], [30, 31, 40], [600, 1200], list(range(1300))])
def test_a_key_that_is_longer_than_what_is_looked_back_at(cuts):
    token = TOKEN.split(".")[0] + ".eyJ" + "a1B2" * 300 + "." + "c3D4" * 20
    body = b"text and " + token.encode() + b" and more"
    scrubber, spans = BodyScrubber("text/plain"), []
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        spans += scrubber.feed(body[start:end])
    assert masked(body, spans) == b"text and " + b"x" * len(token) + b" and more"


def test_the_text_of_tokens_with_their_logprobs_stays():
    body = b'{"choices":[{"logprobs":{"content":[{"token":"Hello","logprob":-0.1,"top_logprobs":[{"token":"Hi"}]}]}}]}'
    assert BodyScrubber("application/json").feed(body) == []
    assert BodyScrubber("application/json").feed(b'{"token":"Hello"}') != []


@pytest.mark.parametrize("cut", range(1, 90))
def test_a_head_is_masked_wherever_it_is_cut(cut):
    head = b"HTTP/1.1 200 OK\r\nset-cookie: sid=" + SECRET.encode() + b"; Path=/\r\nX-Token:\r\n folded-secret\r\n\r\n"
    scrubber = HeadScrubber()
    spans = scrubber.feed(head[:cut]) + scrubber.feed(head[cut:])
    out = masked(head, spans)
    expected = head.replace(SECRET.encode(), b"x" * len(SECRET)).replace(b"folded-secret", b"x" * 13)
    assert out == expected
    first = masked(head[:cut], HeadScrubber().feed(head[:cut]))
    assert first == expected[:cut], "what is kept before the rest arrives shows a part of a secret"


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("encoding", COMPRESSED)
def test_a_compressed_body_with_a_secret_is_not_kept_at_all(encoding):
    compress = COMPRESSED[encoding]
    plain, secret = (json.dumps({name: SECRET * 20}).encode() for name in ("text", "password"))
    assert scrub_body(compress(plain), content_encoding=encoding) == compress(plain)
    assert scrub_body(compress(secret), content_encoding=encoding) is None


@pytest.mark.parametrize("encoding", ["br", "gzip, br", "gzip"])
def test_what_cannot_be_looked_into_is_not_kept(encoding):
    assert scrub_body(b"not compressed", content_encoding=encoding) is None


def test_removed_takes_spans_in_any_order():
    assert removed(b"abcdef", [(4, 5), (0, 2), (1, 3)]) == b"REMOVEDdREMOVEDf"


@pytest.mark.parametrize("cut", [1, 9, 400])
def test_json_that_is_called_a_form_is_read_as_json(cut):
    """As urllib and curl label every body."""
    body = b' {"query": "x", "api_key": "very-secret-value", "n": 1}'
    scrubber = BodyScrubber("application/x-www-form-urlencoded")
    spans = [span for at in range(0, len(body), cut) for span in scrubber.feed(body[at : at + cut])]
    assert b"very-secret-value" not in masked(body, spans)
    assert b'"query": "x"' in masked(body, spans)
