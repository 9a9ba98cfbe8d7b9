from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.isolate.protocol import FrameDecoder, ProtocolError, encode

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
messages = st.dictionaries(st.text(max_size=8), values, max_size=5)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def decode(data: bytes) -> list[dict[str, Any]]:
    decoder = FrameDecoder()
    decoded = list(decoder.feed(data))
    decoder.close()
    return decoded


@given(st.lists(messages, max_size=4), st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(sent: list[dict[str, Any]], data: st.DataObject) -> None:
    stream = b"".join(encode(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder = FrameDecoder()
    got = [m for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) for m in decoder.feed(stream[a:b])]
    decoder.close()
    assert got == sent


def test_byte_by_byte() -> None:
    stream = encode({"a": 1}) + encode({"b": [2.5, None, "ü"]})
    decoder = FrameDecoder()
    got = [message for i in range(len(stream)) for message in decoder.feed(stream[i : i + 1])]
    assert got == [{"a": 1}, {"b": [2.5, None, "ü"]}]


@given(st.binary(max_size=60))
def test_any_bytes_give_messages_or_a_protocol_error(data: bytes) -> None:
    try:
        decoded = decode(data)
    except ProtocolError:
        return
    assert all(isinstance(message, dict) for message in decoded)


def test_a_huge_length_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(ProtocolError, match="4294967295"):
        list(FrameDecoder().feed(b"\xff\xff\xff\xff"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "finite"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "5000 digits"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deeper"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[1]", "list"),
        (b"", "JSON"),
        (b'{"a": 1} x', "JSON"),
    ],
)
def test_what_stock_json_lets_through_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        list(FrameDecoder().feed(frame(body)))


def test_brackets_inside_strings_are_not_depth() -> None:
    message = {"a": '[{"\\' * 500}
    assert decode(encode(message)) == [message]


def test_a_string_without_an_end_is_read_once() -> None:
    # Quadratic work here would take minutes: each escaped quote would start a search to the end.
    with pytest.raises(ProtocolError):
        list(FrameDecoder().feed(frame(b'{"a": "' + b'\\"' * 1_000_000)))


def test_a_frame_that_never_ends_is_an_error_at_close() -> None:
    decoder = FrameDecoder()
    assert list(decoder.feed(encode({"a": 1})[:-1])) == []
    with pytest.raises(ProtocolError, match="inside a frame"):
        decoder.close()


def test_the_first_error_is_final() -> None:
    decoder = FrameDecoder()
    good = encode({"a": 1})
    messages = decoder.feed(good + frame(b"[]"))
    assert next(messages) == {"a": 1}
    with pytest.raises(ProtocolError):
        next(messages)
    with pytest.raises(ProtocolError):
        list(decoder.feed(good))


@pytest.mark.parametrize("message", [{"a": float("nan")}, {"a": b"bytes"}, {"a": {1, 2}}])
def test_a_message_json_cannot_hold_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        encode(message)


def test_a_message_above_the_limit_is_refused_with_a_way_out() -> None:
    with pytest.raises(ProtocolError) as caught:
        encode({"a": "x" * 100}, max_bytes=50)
    assert "--full" in caught.value.remedy


def test_frames_are_plain_json_behind_their_length() -> None:
    data = encode({"a": [1]})
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert json.loads(data[4:]) == {"a": [1]}
