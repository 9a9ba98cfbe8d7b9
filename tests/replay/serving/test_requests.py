"""Request bodies: what is taken, what is refused, and that a refusal names its parameter."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.defects import Defects
from replay.openai_wire import CHAT, COMPLETIONS, ApiError, encode
from replay.serving.fields import parse_object
from replay.serving.requests import COMPLETION_MAX_TOKENS, Call, parse_call

CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT_BODY = {"model": "m", "prompt": "hi"}


def chat(**changes) -> Call:
    return parse_call(CHAT, CHAT_BODY | changes, vocab_size=100)


def text(**changes) -> Call:
    return parse_call(COMPLETIONS, TEXT_BODY | changes, vocab_size=100)


def refused(call, **changes) -> ApiError:
    with pytest.raises(ApiError) as error:
        call(**changes)
    assert error.value.status == 400
    return error.value


def test_every_sampling_parameter_arrives():
    sampling = chat(
        max_completion_tokens=7, min_tokens=2, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, presence_penalty=1,
        frequency_penalty=-1, repetition_penalty=1.1, logit_bias={"7": -100, "3": 1.5}, seed=5, stop="x",
        stop_token_ids=[4], ignore_eos=True,
    ).sampling  # fmt: skip
    assert (sampling.max_tokens, sampling.min_tokens, sampling.temperature, sampling.top_k) == (7, 2, 0.5, 3)
    assert (sampling.top_p, sampling.min_p, sampling.presence_penalty) == (0.9, 0.1, 1.0)
    assert (sampling.frequency_penalty, sampling.repetition_penalty) == (-1.0, 1.1)
    assert sampling.logit_bias == ((3, 1.5), (7, -100.0))
    assert (sampling.seed, sampling.stop, sampling.stop_token_ids, sampling.ignore_eos) == (5, ("x",), (4,), True)


def test_token_ids_are_given_to_who_asks_for_them():
    assert not chat().return_token_ids
    assert chat(return_token_ids=True).return_token_ids
    assert text(return_token_ids=True).return_token_ids
    assert refused(text, return_token_ids=1).param == "return_token_ids"


def test_limits_on_output_follow_the_api():
    assert chat().sampling.max_tokens == 0
    assert chat(max_tokens=5).sampling.max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=6).sampling.max_tokens == 6
    assert text().sampling.max_tokens == COMPLETION_MAX_TOKENS
    assert refused(chat, max_tokens=0).param == "max_tokens"


def test_a_request_without_a_seed_gets_a_random_one():
    assert chat().sampling.seed != chat().sampling.seed
    assert chat(seed=-1).sampling.seed == 2**64 - 1


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_beyond_any_context_is_taken_and_one_beyond_any_sense_is_told_the_bound(name):
    assert chat(**{name: 10**9}).sampling.max_tokens == 10**9
    assert chat(**{name: 2**31 - 1}).sampling.max_tokens == 2**31 - 1
    error = refused(chat, **{name: 2**31})
    assert (error.param, error.message) == (name, f"Invalid '{name}': must be at most 2147483647, got 2147483648.")


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_k", 2**32), ("min_tokens", 2**32), ("repetition_penalty", 1e39), ("repetition_penalty", 1e-46)],
)
def test_numbers_that_no_dump_or_sampler_holds_are_refused(name, value):
    """They are recorded in 32 bits, and a request that cannot be recorded would keep every dump from being written."""
    assert refused(chat, **{name: value}).param == name


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [
        ("hi", ("hi",)),
        ([1, 2], ((1, 2),)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [1]], ("a", (1,))),
    ],
)
def test_every_form_of_a_prompt(prompt, parsed):
    assert text(prompt=prompt).prompts == parsed


@pytest.mark.parametrize("prompt", [None, 5, [], {}, [1.5], [True], [[]], [None], [[1, "a"]], [100], [-1], ["a", {}]])
def test_other_prompts_are_refused(prompt):
    assert (refused(text, prompt=prompt).param or "").startswith("prompt")


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0]["content"] == "ab"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[0]"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "tool", "content": "hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "\ud800"}, "messages[0].content"),
    ],
)
def test_a_bad_message_is_named_by_its_place(message, param):
    assert refused(chat, messages=[message]).param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logprobs", True), ("logprobs", 0), ("top_logprobs", 3), ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"), ("response_format", {"type": "json_object"}), ("best_of", 2), ("echo", True),
        ("no_such_parameter", 1), ("prompt", "hi"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(name, value):
    assert refused(chat, **{name: value}).param == name


@pytest.mark.parametrize("name", ["logprobs", "tools", "response_format", "stop", "seed", "n", "whatever"])
def test_null_counts_as_absent(name):
    chat(**{name: None})


def test_values_that_ask_for_nothing_are_taken():
    chat(logprobs=False, tools=[], tool_choice="none", response_format={"type": "text"}, user="someone", store=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", None), ("model", 5), ("n", 0), ("n", 17), ("n", True), ("stream", 1),
        ("stream_options", {"include_usage": True}), ("stop", 5),
        ("stop", [""]), ("stop", ["a"] * 17), ("stop", "a" * 2000), ("temperature", "hot"), ("temperature", 2.1),
        ("temperature", 1e999), ("temperature", 10**400), ("top_p", 0), ("top_k", -2), ("min_p", 1),
        ("presence_penalty", 3), ("repetition_penalty", 0), ("seed", 2**64), ("seed", 1.0), ("logit_bias", {"x": 1}),
        ("logit_bias", {"100": 1}), ("logit_bias", {"1": 101}), ("logit_bias", {"1": True}), ("logit_bias", [1]),
        ("logit_bias", {"1": 0, "01": 1}), ("stop_token_ids", [100]), ("stop_token_ids", "a"), ("min_tokens", -1),
        ("max_tokens", 2**40), ("ignore_eos", "yes"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_or_of_another_type_is_refused_by_name(name, value):
    assert refused(chat, **{name: value}).param == name


def test_usage_in_a_stream_has_to_be_asked_for():
    assert not chat(stream=True).include_usage
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert refused(chat, stream=True, stream_options={"nothing": True}).param == "stream_options"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"5", b"null", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b"\xff{}", b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", b'{"a": ' + b"9" * 5000 + b"}",
        '{"a": 1}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_a_400(data):
    with pytest.raises(ApiError) as error:
        parse_object(data)
    assert (error.value.status, error.value.code) == (400, "invalid_json")
    json.dumps(error.value.body).encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted({"model", "messages", "prompt", "stream_options", "logit_bias", "stop", "n", "seed", "top_k", "tools"})


@given(st.sampled_from([CHAT, COMPLETIONS]), st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), JSON))
def test_any_json_is_a_call_or_an_error_that_can_be_sent(endpoint, changes):
    base = CHAT_BODY if endpoint == CHAT else TEXT_BODY
    try:
        call = parse_call(endpoint, base | changes, vocab_size=100)
    except ApiError as error:
        encode(error.body)
    else:
        assert call.sampling.problem(100) is None


@pytest.mark.parametrize("field", [{"logit_bias": {"100": 1}}, {"stop_token_ids": [100]}])
def test_ids_beyond_the_vocabulary_are_refused_unless_that_is_the_defect(field):
    body, unchecked = TEXT_BODY | field, Defects(token_ids_unchecked=True)
    with pytest.raises(ApiError, match="outside the vocabulary of 100"):
        parse_call(COMPLETIONS, body, vocab_size=100)
    sampling = parse_call(COMPLETIONS, body, vocab_size=100, defects=unchecked).sampling
    assert (*dict(sampling.logit_bias), *sampling.stop_token_ids) == (100,)
    with pytest.raises(ApiError, match="outside the vocabulary"):  # a dump could not hold it
        parse_call(COMPLETIONS, body | {"logit_bias": {str(2**31): 1}}, vocab_size=100, defects=unchecked)
    with pytest.raises(ApiError, match="between -100 and 100"):
        parse_call(COMPLETIONS, body | {"logit_bias": {"100": 101}}, vocab_size=100, defects=unchecked)
