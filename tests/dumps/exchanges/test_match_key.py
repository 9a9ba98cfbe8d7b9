"""The fields in which two requests differ, and which of several is the nearest."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dumps.exchanges.canonical import canonical_request
from dumps.exchanges.match_key import FieldDifference, difference, match_key, nearest
from dumps.schema import state_pb2 as pb

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def ask(body: Any = b"", *, method: str = "POST", url: str = "http://h/v1", kind: str = "") -> pb.Exchange:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    exchange = pb.Exchange(method=method, url=url, request_body=data)
    exchange.request_headers.add(key="content-type", value=kind or "application/json")
    return exchange


def fields(one: pb.Exchange, other: pb.Exchange) -> dict[str, tuple[str | None, str | None]]:
    return {found.field: (found.one, found.other) for found in difference(one, other)}


def test_a_difference_in_json_is_named_by_its_path() -> None:
    one = {"model": "m", "messages": [{"content": "a"}, {"content": "b"}], "n": 1}
    other = {"model": "m", "messages": [{"content": "a"}, {"content": "c"}, {"content": "d"}], "n": True}
    assert fields(ask(one), ask(other)) == {
        "body.messages[1].content": ('"b"', '"c"'),
        "body.messages[2]": (None, '{"content": "d"}'),
        "body.n": ("1", "true"),
    }
    assert fields(ask({"odd key": 1}), ask({"odd key": None})) == {'body["odd key"]': ("1", "null")}


def test_differences_in_method_url_and_query_are_named() -> None:
    one = ask(method="GET", url="http://h/a?q=1&same=0&gone=x")
    other = ask(method="PUT", url="https://g:8443/b?q=2&q=3&same=0")
    assert fields(one, other) == {
        "method": ("GET", "PUT"),
        "url.scheme": ("http", "https"),
        "url.host": ("h", "g"),
        "url.port": (None, "8443"),
        "url.path": ("/a", "/b"),
        "query.q": ("1", "2, 3"),
        "query.gone": ("x", None),
    }


def test_forms_parts_and_bytes_are_told_apart() -> None:
    form = "application/x-www-form-urlencoded"
    assert fields(ask(b"a=1&b=%20", kind=form), ask(b"b=x&a=1", kind=form)) == {"form.b": (" ", "x")}
    parts = "multipart/mixed; boundary=q"
    one, other = b"--q\r\n\r\n\xff\r\n--q--", b"--q\r\n\r\n\xfe\r\n--q--"
    assert fields(ask(one, kind=parts), ask(other, kind=parts)) == {"body.parts[0]": ("\\r\\n\\xff", "\\r\\n\\xfe")}
    assert fields(ask(b"one", kind="text/plain"), ask(b"two", kind="text/plain")) == {"body": ("one", "two")}
    assert fields(ask(b"{}"), ask(b"{")) == {"body": ("(json) {}", "(bytes) {")}


def test_of_long_texts_the_place_where_they_part_is_shown() -> None:
    [found] = difference(ask({"content": "x" * 5000 + "one"}), ask({"content": "x" * 5000 + "two"}))
    assert found == FieldDifference("body.content", "…" + "x" * 24 + 'one"', "…" + "x" * 24 + 'two"')
    [found] = difference(ask(b"y" * 300, kind="text/plain"), ask(b"y" * 200, kind="text/plain"))
    assert found.other == "…" + "y" * 24
    assert found.one is not None
    assert found.one.endswith("characters)")


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert fields(ask(b"\x1b[2J", kind="text/plain"), ask(b"", kind="text/plain")) == {"body": ("\\x1b[2J", "")}
    [found] = difference(ask({"\x1b": 1}), ask({"\x1b": 2}))
    assert "\x1b" not in found.field


@given(anything, anything)
def test_there_is_a_difference_exactly_where_the_keys_differ(one: Any, other: Any) -> None:
    equal = match_key(ask(one)) == match_key(ask(other))
    assert (not difference(ask(one), ask(other))) == equal


def test_the_number_of_differences_is_bounded() -> None:
    assert len(difference(ask([0] * 1000), ask([1] * 1000))) == 50


def test_the_nearest_shares_the_address_before_the_body() -> None:
    asked = canonical_request(ask({"q": "new", "k": 1}, url="http://h/search"))
    candidates = [
        ask({"q": "new", "k": 1}, url="http://other/search"),
        ask({"q": "old", "k": 2}, url="http://h/search"),
        ask({"q": "old", "k": 1}, url="http://h/search"),
        ask({"q": "older", "k": 1}, url="http://h/search"),
    ]
    found = nearest(asked, [canonical_request(candidate) for candidate in candidates])
    assert found == (2, [FieldDifference("body.q", '"old"', '"new"')])
    assert nearest(asked, []) is None
