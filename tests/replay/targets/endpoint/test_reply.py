"""What an answer adds up to, and when it is known to have been cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replay.targets.endpoint.reply import ErrorBody, Reply


def reply(events: dict[int, int], finish: str = "length", usage: int | None = None) -> Reply:
    """Choices that streamed so many events each."""
    made = Reply()
    for index, number in events.items():
        for at in range(number):
            made.take(
                {"choices": [{"index": index, "text": "x", "finish_reason": finish if at == number - 1 else None}]}
            )
    if usage is not None:
        made.take({"choices": [], "usage": {"completion_tokens": usage}})
    return made


def test_one_choice_has_what_the_server_counted():
    assert reply({0: 3}, usage=5).tokens(0) == 5
    assert reply({0: 3}).tokens(0) is None


def test_of_several_choices_events_count_only_where_they_add_up():
    assert [reply({0: 3, 1: 2}, usage=5).tokens(index) for index in (0, 1)] == [3, 2]
    assert [reply({0: 3, 1: 2}, usage=6).tokens(index) for index in (0, 1)] == [None, None]


def test_an_answer_is_cut_only_if_it_is_known_to_be_short():
    assert reply({0: 3}, usage=3).is_cut(0, 4) is True
    assert reply({0: 3}, usage=4).is_cut(0, 4) is False
    assert reply({0: 3}).is_cut(0, 4) is None
    assert reply({0: 4}).is_cut(0, 4) is False
    assert reply({0: 3}, usage=3).is_cut(0, None) is True
    assert reply({0: 3}, finish="stop", usage=3).is_cut(0, 4) is False
    # 9 tokens in all; the other choice has 5 or more of them, so this one has 4 at most.
    assert reply({0: 3, 1: 5}, usage=9).is_cut(0, 5) is True
    assert reply({0: 3, 1: 5}, usage=9).is_cut(0, 4) is None


@given(
    tokens=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=8), min_size=1, max_size=3),
    asked=st.integers(1, 12),
    counted=st.booleans(),
)
def test_what_is_said_of_a_cut_is_true(tokens, asked, counted):
    """Tokens come in events of one to three. Whatever `is_cut` claims must hold for the real number."""
    made = reply({index: len(events) for index, events in enumerate(tokens)})
    if counted:
        made.take({"usage": {"completion_tokens": sum(map(sum, tokens))}})
    for index, events in enumerate(tokens):
        claimed = made.is_cut(index, asked)
        if sum(events) > asked:
            continue  # a server that gives more than it was asked for is not cut, and not our matter
        assert claimed is None or claimed == (sum(events) < asked)
        exact = made.tokens(index)
        assert exact is None or exact == sum(events)


def test_errors_are_read_in_the_shapes_that_servers_have():
    assert ErrorBody.of({"error": {"message": "m", "code": 400, "param": "p"}}) == ErrorBody(
        message="m", code="400", param="p"
    )
    assert ErrorBody.of({"error": "m"}) == ErrorBody(message="m")
    assert ErrorBody.of({"object": "error", "message": "m"}) == ErrorBody(message="m")
    assert ErrorBody.of({"detail": [{"loc": ["body", "seed"]}]}) == ErrorBody(message="[{'loc': ['body', 'seed']}]")
    assert ErrorBody.of({"choices": []}) is None
    assert ErrorBody.of(["error"]) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "usage", "error", "index", "text", "delta", "content", "finish_reason", "detail"]
                ),
                x,
            )
        ),
    )
)
def test_nothing_that_a_server_says_breaks_it(document):
    made = Reply()
    if isinstance(document, dict):
        made.take(document)
    assert made.is_whole(0)
