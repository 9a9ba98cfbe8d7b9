"""Stop strings cut exactly, however the text is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.detokenize import Vocabulary
from replay.engine.request import FinishCause, Request, SamplingParams
from replay.engine.stop_strings import StopMatcher, StopStrings, TextStream
from tests.tiny import tiny_tokenizer

VOCABULARY = Vocabulary(tiny_tokenizer())


def ids(text: str) -> list[int]:
    return VOCABULARY.tokenizer.encode(text).ids


def request(prompt: str, *, stop: tuple[str, ...], min_tokens: int = 0, output: str = "") -> Request:
    tokens = ids(prompt)
    sampling = SamplingParams(stop=stop, min_tokens=min_tokens)
    return Request(id="r", tokens=tokens + ids(output), num_prompt=len(tokens), sampling=sampling)


def run(check: StopStrings, one: Request, text: str) -> tuple[FinishCause | None, str]:
    """Append the text's tokens until the check ends the request, and what had been appended by then."""
    done: list[int] = []
    for token in ids(text):
        one.tokens.append(token)
        done.append(token)
        if (cause := check(one)) is not None:
            return cause, VOCABULARY.tokenizer.decode(done)
    return None, VOCABULARY.tokenizer.decode(done)


@given(
    st.text("abc", max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 20), max_size=5),
)
def test_what_is_shown_is_cut_before_the_stop_string_that_is_complete_first(text, stop, cuts):
    matcher = StopMatcher(stop)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    shown = ""
    for begin, end in pairwise(bounds):
        shown += matcher.push(text[begin:end])
        assert text.startswith(shown)
        if matcher.matched:
            assert any(text[len(shown) :].startswith(s) for s in stop)
            assert not any(s in text[:begin] for s in stop), "matched too late"
            return
        # Nothing that is shown can turn out to be the beginning of a stop string.
        assert not any(s.startswith(text[start:end]) for s in stop for start in range(len(shown)))
    assert shown + matcher.finish() == text
    assert not any(s in text for s in stop)


def test_byte_by_byte():
    matcher = StopMatcher(["</end>"])
    shown = [matcher.push(char) for char in "a</en<b</end>c"]
    assert "".join(shown) == "a</en<b"
    assert matcher.matched
    assert shown[1:5] == ["", "", "", ""]
    assert matcher.finish() == ""


def test_the_engine_stops_at_the_token_that_completes_the_stop_string():
    cause, text = run(StopStrings(VOCABULARY), request("hello", stop=("END",)), "a b END c d")
    assert cause is FinishCause.STOP_STRING
    assert text.rstrip(" ") == "a b END"


def test_a_stop_string_in_the_prompt_does_not_count():
    assert run(StopStrings(VOCABULARY), request("END EN", stop=("END",)), "D xyz")[0] is None


def test_output_from_before_is_read_up():
    cause, text = run(StopStrings(VOCABULARY), request("p", stop=("END",), output="xyEN"), "D")
    assert (cause, text) == (FinishCause.STOP_STRING, "D")


def test_a_multi_byte_stop_string_counts_when_its_last_byte_is_there():
    check, one = StopStrings(VOCABULARY), request("p", stop=("🦜",))
    tokens = ids("🦜")
    for token in tokens[:-1]:
        one.tokens.append(token)
        assert check(one) is None
    one.tokens.append(tokens[-1])
    assert check(one) is FinishCause.STOP_STRING


def test_text_of_the_tokens_below_min_tokens_cannot_stop():
    stream = TextStream(VOCABULARY, stop=("x",), min_tokens=3)
    assert [stream.push(ids("x")[0]) for _ in range(2)] == ["x", "x"]
    assert not stream.stopped
    assert stream.push(ids("x")[0]) == ""
    assert stream.stopped


@given(st.text("abcé🦜 ", max_size=20), st.sampled_from([(), ("ab",), ("é", "bc"), ("🦜a",)]), st.integers(0, 6))
def test_the_engine_and_the_text_agree(text, stop, min_tokens):
    stream = TextStream(VOCABULARY, stop=stop, min_tokens=min_tokens)
    check, one = StopStrings(VOCABULARY), request("p", stop=stop, min_tokens=min_tokens)
    for token in ids(text):
        one.tokens.append(token)
        stream.push(token)
        # The scheduler asks only when the request may end at all.
        ended = one.num_output >= min_tokens and check(one) is not None
        assert ended == stream.stopped
        if ended:
            return


def test_forgetting_a_request_frees_what_was_kept():
    check, one = StopStrings(VOCABULARY), request("p", stop=("END",))
    run(check, one, "E")
    check.forget(one)
    assert not check._streams


@pytest.mark.parametrize("stop", [(), ("",)])
def test_without_stop_strings_nothing_is_held_back(stop):
    matcher = StopMatcher(stop)
    assert matcher.push("abc") == "abc"
    assert not matcher.matched
