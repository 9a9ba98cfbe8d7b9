"""Spellings that are one request, and values that are not."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.exchanges import canonical
from dumps.exchanges.canonical import CanonicalBody, CanonicalUrl, canonical_body, canonical_url
from dumps.exchanges.match_key import match_key
from dumps.schema import state_pb2 as pb

JSON = [pb.KeyValue(key="Content-Type", value="application/json; charset=utf-8")]
FORM = [pb.KeyValue(key="content-type", value="application/x-www-form-urlencoded")]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
documents = st.dictionaries(texts, values, max_size=5)
pairs = st.lists(st.tuples(texts.filter(bool), texts), max_size=6)


def as_json(value: Any, **how: Any) -> CanonicalBody:
    return canonical_body(JSON, json.dumps(value, **how).encode())


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(inner) for key, inner in reversed(value.items())}
    return [shuffled(inner) for inner in value] if isinstance(value, list) else value


@given(documents)
def test_key_order_whitespace_and_escapes_do_not_matter(document: dict[str, Any]) -> None:
    plain = as_json(document)
    assert plain.kind == "json"
    assert as_json(shuffled(document), indent=3, ensure_ascii=False) == plain


@given(documents)
def test_the_canonical_form_of_json_is_its_own(document: dict[str, Any]) -> None:
    once = as_json(document)
    assert canonical_body(JSON, once.data) == once


@given(documents, texts, leaves, leaves)
def test_any_other_value_is_another_body(document: dict[str, Any], key: str, one: Any, other: Any) -> None:
    same = json.dumps(one) == json.dumps(other) or (type(one) in (int, float) and one == other)
    first, second = as_json({**document, key: one}), as_json({**document, key: other})
    assert (first.data == second.data) == same


@pytest.mark.parametrize(
    ("one", "other"), [("1", "1.0"), ("1e2", "100"), ("0.10", "0.1"), ("1E-1", "0.1"), ("-0.0", "0")]
)
def test_one_number_has_one_form(one: str, other: str) -> None:
    assert canonical_body(JSON, f'{{"n": {one}}}'.encode()) == canonical_body(JSON, f'{{"n":{other}}}'.encode())


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 5000 + b"]" * 5000,
        b'{"a": 1',
        b"\xff\xfe{}",
        b"",
    ],
)
def test_a_body_that_is_no_strict_json_is_its_bytes(damaged: bytes) -> None:
    body = canonical_body(JSON, damaged)
    assert (body.kind, body.data) == ("bytes", damaged)


def test_json_is_known_without_its_header_but_a_bare_word_is_not() -> None:
    assert canonical_body([], b' {"b":1, "a":2}').data == b'{"a":2,"b":1}'
    assert canonical_body([], b"1.0").kind == "bytes"
    assert canonical_body(JSON, b"1.0").data == b"1"


@given(pairs, st.randoms())
def test_the_order_of_a_form_matters_only_among_equal_names(fields: list[tuple[str, str]], random: Any) -> None:
    groups: dict[str, list[str]] = {}
    for name, value in fields:
        groups.setdefault(name, []).append(value)
    names = list(groups)
    random.shuffle(names)
    regrouped = [(name, value) for name in names for value in groups[name]]
    assert canonical_body(FORM, encode(regrouped)) == canonical_body(FORM, encode(fields))
    if fields:
        changed = [*fields[:-1], (fields[-1][0], fields[-1][1] + "x")]
        assert canonical_body(FORM, encode(changed)) != canonical_body(FORM, encode(fields))


@given(pairs)
def test_the_spelling_of_an_escape_does_not_matter(fields: list[tuple[str, str]]) -> None:
    assert canonical_url("http://h/?" + encode(fields).decode()) == canonical_url(
        "http://h/?" + encode(fields, all_escaped=True).decode()
    )


def encode(fields: list[tuple[str, str]], *, all_escaped: bool = False) -> bytes:
    from urllib.parse import urlencode

    if not all_escaped:
        return urlencode(fields).encode()
    escaped = [tuple("".join(f"%{byte:02x}" for byte in text.encode()) for text in pair) for pair in fields]
    return "&".join("=".join(pair) for pair in escaped).encode()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTP://Example.COM:80", "http://example.com/"),
        ("https://example.com:443/a#part", "https://example.com/a"),
        ("https://user:secret@example.com:8443/", "https://example.com:8443/"),
        ("http://h/%7euser/%2fx/%zz/é", "http://h/~user/%2Fx/%25zz/%C3%A9"),
        ("http://h/?b=2&a=2&a=1&&c", "http://h/?a=2&a=1&b=2&c"),
        ("http://h/?q=a+b&r=a%20b&s=a%2bb", "http://h/?q=a%20b&r=a%20b&s=a%2Bb"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("http://h:99999/x", "http://h:99999/x"),
        ("/only/a/path", "/only/a/path"),
        ("http://h/a\tb", "http://h/a\tb"),
    ],
)
def test_urls(url: str, expected: str) -> None:
    assert str(canonical_url(url)) == expected
    assert str(canonical_url(expected)) == expected


@given(st.text(max_size=30))
def test_any_text_for_a_url_has_a_form_that_is_its_own(text: str) -> None:
    for url in (text, f"http://host/{text}", f"http://{text}"):
        once = canonical_url(url)
        assert str(canonical_url(str(once))) == str(once)
        assert isinstance(once, CanonicalUrl) or once == url


def test_an_empty_value_is_not_an_absent_one() -> None:
    assert canonical_url("http://h/?a") != canonical_url("http://h/?a=")


def multipart(boundary: str, *parts: str) -> CanonicalBody:
    headers = [pb.KeyValue(key="Content-Type", value=f'multipart/form-data; boundary="{boundary}"')]
    lines = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"--{boundary}--\r\n"
    return canonical_body(headers, lines.encode())


def test_the_boundary_of_a_multipart_body_does_not_matter_and_its_parts_do() -> None:
    parts = ('Content-Disposition: form-data; name="a"\r\n\r\n1', 'Content-Disposition: form-data; name="b"\r\n\r\n')
    one = multipart("aaaa", *parts)
    assert one.kind == "multipart"
    assert one == multipart("0b1c", *parts)
    assert one != multipart("aaaa", *reversed(parts))
    assert one != multipart("aaaa", parts[0])


@pytest.mark.parametrize("body", [b"", b"no boundary at all", b"--aaaa\r\nnever closed", b"--aaaaX\r\n1\r\n--aaaa--"])
def test_a_multipart_body_without_its_form_is_its_bytes(body: bytes) -> None:
    headers = [pb.KeyValue(key="Content-Type", value="multipart/mixed; boundary=aaaa")]
    assert canonical_body(headers, body).kind == "bytes"


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
    ],
)
def test_a_compressed_body_is_what_is_in_it(name: str, pack: Any) -> None:
    headers = [*JSON, pb.KeyValue(key="Content-Encoding", value=name)]
    assert canonical_body(headers, pack(b'{"a": 1}')) == canonical_body(JSON, b'{"a":1}')


def test_a_body_that_grows_beyond_the_limit_stays_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = [pb.KeyValue(key="Content-Encoding", value="gzip")]
    packed = gzip.compress(b"a" * 1001)
    monkeypatch.setattr(canonical, "MAX_DECODED_BODY", 1000)
    assert canonical_body(headers, packed).data == packed
    monkeypatch.setattr(canonical, "MAX_DECODED_BODY", 1001)
    assert canonical_body(headers, packed).data == b"a" * 1001


@pytest.mark.parametrize("encoding", ["br", "gzip", "gzip, zstd"])
def test_an_encoding_that_cannot_be_undone_leaves_the_bytes(encoding: str) -> None:
    headers = [pb.KeyValue(key="Content-Encoding", value=encoding)]
    assert canonical_body(headers, b"\x1b\x02").data == b"\x1b\x02"


def test_headers_take_no_part_in_the_key() -> None:
    one = pb.Exchange(method="POST", url="http://h/", request_body=b"{}", request_headers=JSON)
    other = pb.Exchange(method="POST", url="http://h/", request_body=b"{ }")
    other.request_headers.add(key="date", value="today")
    assert match_key(one) == match_key(other)
    assert hash(match_key(one)) == hash(match_key(other))
    other.method = "PUT"
    assert match_key(one) != match_key(other)
