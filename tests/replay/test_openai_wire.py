"""Wire shapes, and events read back however the bytes were cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from replay import openai_wire as wire

USAGE = wire.Usage(prompt_tokens=3, completion_tokens=2)
CHOICE = wire.Choice(index=0, text="hi", finish_reason="stop")


def shape(chat: bool) -> wire.AnswerShape:
    return wire.AnswerShape(id="x-1", model="m", created=1, chat=chat, fingerprint="fp")


def test_bodies_are_those_of_the_official_client():
    assert (
        ChatCompletion.model_validate(shape(True).body([CHOICE], USAGE), strict=True).choices[0].message.content == "hi"
    )
    assert Completion.model_validate(shape(False).body([CHOICE], USAGE), strict=True).choices[0].text == "hi"
    for body in (shape(True).role_chunk(0), shape(True).text_chunk(1, "a", "length"), shape(True).usage_chunk(USAGE)):
        ChatCompletionChunk.model_validate(body, strict=True)


def test_usage_adds_up():
    assert USAGE.body() == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.integers(0, 300)), st.booleans())
def test_events_are_read_back_however_they_are_cut(texts, cuts, crlf):
    bodies = [shape(True).text_chunk(0, text) for text in texts]
    data = b": a comment\n\n" + b"".join(wire.event(body) for body in bodies) + wire.DONE
    data = data.replace(b"\n", b"\r\n") if crlf else data
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    reader = wire.EventReader()
    read = [b for begin, end in pairwise(bounds) for b in reader.feed(data[begin:end])]
    assert read == bodies
    assert reader.done


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: 5\n\n"])
def test_an_event_that_is_no_object_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"."):
        list(wire.EventReader().feed(data))


def test_errors_have_all_four_fields():
    error = wire.invalid("no", "n", "invalid_value")
    assert error.status == 400
    assert json.loads(wire.encode(error.body)) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
    }
    assert wire.ApiError(500, "x").body["error"]["type"] == "server_error"


def test_nan_is_never_sent():
    with pytest.raises(ValueError, match="not JSON compliant"):
        wire.encode({"x": float("nan")})
