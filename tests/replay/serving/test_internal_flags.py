"""The header X-PPLX-Internal-Flags: its grammar, and what it does to answers of a real server."""

from __future__ import annotations

import json

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.record.recover import read_ring, state_from_ring
from dumps.trace import read_fallback
from replay.engine.request import NO_FLAGS, InternalFlags
from replay.openai_wire import ApiError
from replay.serving.internal_flags import INTERNAL_FLAGS, parse_flags

BODY = {"model": "tiny", "prompt": "The weather in the mountains", "temperature": 0, "max_tokens": 60}
BODY |= {"extra_body": {"ignore_eos": True}}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello there"}], "temperature": 0, "max_tokens": 60}
CHAT |= {"extra_body": {"ignore_eos": True}}


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ([], NO_FLAGS),
        (["early-exit=0.8,fallback-trace=on"], InternalFlags(early_exit=0.8, fallback_trace=True)),
        (["early-exit=1"], InternalFlags(early_exit=1.0)),
        (["early-exit=.25"], InternalFlags(early_exit=0.25)),
        ([" fallback-trace=on ,\tearly-exit=0.5"], InternalFlags(early_exit=0.5, fallback_trace=True)),
        (["fallback-trace=off"], NO_FLAGS),
        (["early-exit=0.5", "fallback-trace=on"], InternalFlags(early_exit=0.5, fallback_trace=True)),
    ],
)
def test_flags_of_one_or_several_headers(values, flags):
    assert parse_flags(values) == flags


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([""], "unknown flag ''"),
        (["early-exit=0.5,"], "unknown flag ''"),
        (["early_exit=0.5"], "unknown flag 'early_exit'; there are early-exit and fallback-trace"),
        (["Early-Exit=0.5"], "unknown flag 'Early-Exit'"),
        (["early-exit"], "'early-exit' wants a number above 0 and at most 1"),
        (["early-exit="], "'early-exit' wants a number above 0 and at most 1"),
        (["early-exit=0"], "got '0'"),
        (["early-exit=1.0000001"], "got '1.0000001'"),
        (["early-exit=-0.5"], "got '-0.5'"),
        (["early-exit=nan"], "got 'nan'"),
        (["early-exit=inf"], "got 'inf'"),
        (["early-exit=1e-1"], "got '1e-1'"),
        (["early-exit=0_1"], "got '0_1'"),
        (["early-exit=0.5=0.5"], "got '0.5=0.5'"),
        (["early-exit =0.5"], "unknown flag 'early-exit '"),
        (["early-exit=\u0660.5"], "got '\\u0660.5'"),
        (["fallback-trace"], "'fallback-trace' wants on or off"),
        (["fallback-trace=On"], "'fallback-trace' wants on or off"),
        (["fallback-trace=1"], "got '1'"),
        (["early-exit=0.5,early-exit=0.5"], "'early-exit' is given twice"),
        (["fallback-trace=off", "fallback-trace=on"], "'fallback-trace' is given twice"),
        (["x" * 5000], "unknown flag '" + "x" * 64 + "'"),
    ],
)
def test_refusals_name_the_flag_and_what_it_wants(values, says):
    with pytest.raises(ApiError) as error:
        parse_flags(values)
    assert error.value.status == 400
    assert error.value.param == INTERNAL_FLAGS
    assert says in error.value.message
    assert len(error.value.message) < 300


@given(st.lists(st.text(max_size=40) | st.sampled_from(["early-exit=", "fallback-trace=", "0.8", "on", ",", "="])))
def test_any_text_is_flags_or_a_refusal(pieces):
    for values in (pieces, ["".join(pieces)]):
        refusal, flags = None, NO_FLAGS
        try:
            flags = parse_flags(values)
        except ApiError as error:
            refusal = error
        assert refusal is None or (refusal.status == 400 and refusal.message.isascii())
        assert flags.early_exit is None or 0.0 < flags.early_exit <= 1.0


number = st.floats(0.0, 1.0, exclude_min=True).map(lambda value: f"{value:.12f}").filter(lambda text: float(text) > 0)
blank = st.text(" \t", max_size=2)


@given(number, st.booleans(), st.permutations([0, 1]), blank, blank, st.booleans())
def test_every_spelling_reads_as_what_it_says(text, trace, order, before, after, split):
    items = [f"early-exit={text}", f"fallback-trace={'on' if trace else 'off'}"]
    items = [before + items[place] + after for place in order]
    flags = parse_flags(items if split else [",".join(items)])
    assert flags == InternalFlags(early_exit=float(text), fallback_trace=trace)


def headers(*values: str) -> dict[str, str]:
    return {"x-Pplx-iNTERNAL-flags": ",".join(values)}


def recorded(server, answer_id: str):
    """The request as the running server's flight recorder has it, and its decisions by position."""
    state = state_from_ring(read_ring(server.ring))
    index = next(i for i, request in enumerate(state.requests) if request.id == f"{answer_id}-0")
    events = [read_fallback(event) for event in state.trace_events if event.request == index]
    return state.requests[index], {event.position: event for event in events}


def test_completions_end_early_and_their_decisions_are_on_record(client, healthy):
    whole = client.completions.create(**BODY, extra_headers=headers("fallback-trace=on"))
    request, decisions = recorded(healthy, whole.id)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 60)
    assert not request.flags.HasField("early_exit")
    assert request.flags.fallback_trace
    start = request.num_prompt_tokens
    assert sorted(decisions) == list(range(start, start + 59)), "the last token ended the answer"
    assert {event.reason for event in decisions.values()} == {"no-threshold"}

    # A threshold that the seventh or a later token is the first to reach.
    ends = next(p for p in range(start + 6, start + 59) if decisions[p].confidence > max_before(decisions, start, p))
    threshold = f"{(decisions[ends].confidence + max_before(decisions, start, ends)) / 2:.9f}"
    early = client.completions.create(**BODY, extra_headers=headers(f"early-exit={threshold}", "fallback-trace=on"))
    assert (early.choices[0].finish_reason, early.usage.completion_tokens) == ("stop", ends - start + 1)
    assert whole.choices[0].text.startswith(early.choices[0].text.rstrip("\ufffd"))
    request, traced = recorded(healthy, early.id)
    assert (request.finish_cause, request.flags.early_exit) == ("early-exit", float(threshold))
    assert sorted(traced) == list(range(start, ends))
    for position, event in traced.items():
        assert (event.reason, event.token) == ("below-threshold", decisions[position].token)
        assert event.confidence == decisions[position].confidence, "the same logits, bit for bit"
        assert event.candidates == decisions[position].candidates
        assert len(event.candidates) == 5


def max_before(decisions, start: int, position: int):
    return max(decisions[p].confidence for p in range(start, position))


def test_chat_streams_end_early_as_well(client, healthy):
    asked = headers("early-exit=0.0001")
    whole = client.chat.completions.create(**CHAT, extra_headers=asked)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("stop", 1)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**CHAT, **options, extra_headers=asked))
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == 1
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    request, traced = recorded(healthy, chunks[0].id)
    assert (request.finish_reason, request.finish_cause) == ("stop", "early-exit")
    assert traced == {}


def test_min_tokens_and_all_choices_keep_to_the_flags(client, healthy):
    body = BODY | {"n": 2, "temperature": 1.0, "seed": 5}
    body["extra_body"] = {"ignore_eos": True, "min_tokens": 4}
    answer = client.completions.create(**body, extra_headers=headers("early-exit=0.0001", "fallback-trace=on"))
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
    assert answer.usage.completion_tokens == 8
    _, traced = recorded(healthy, answer.id)
    assert [event.reason for event in traced.values()] == ["min-tokens"] * 3


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_bad_header_is_refused_in_the_api_error_shape(client, endpoint):
    call = client.chat.completions.create if endpoint == "chat" else client.completions.create
    body = CHAT if endpoint == "chat" else BODY
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            call(**body, stream=stream, extra_headers=headers("early-exit=2"))
        assert error.value.param == INTERNAL_FLAGS
        assert "'early-exit' wants a number above 0 and at most 1" in json.dumps(error.value.body)
