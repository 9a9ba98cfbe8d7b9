"""Where two computations of the same tokens part, and whether rounding explains it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.divergence import NOISE
from replay.why.draws import Draw, Place, Recorded, compare, compare_recorded

PLACES: list[Place] = [("b", 0), ("a", 0), ("b", 1), ("a", 1)]
RECORDED = Recorded(
    tokens=dict.fromkeys(PLACES, 7),
    digests={place: 100 + number for number, place in enumerate(PLACES)},
    steps={place: number for number, place in enumerate(PLACES)},
)
SAME = {place: Draw(token=7, digest=100 + number, margin=0.5, gap=0.0) for number, place in enumerate(PLACES)}


def other(place: Place, **changes: object) -> dict[Place, Draw]:
    return {**SAME, place: replace(SAME[place], digest=1, **changes)}  # type: ignore[arg-type]


def test_equal_computations_part_nowhere():
    found = compare(SAME, SAME, RECORDED, dtype="float32", exact=True)
    assert (found.compared, found.bits, found.token, found.other_bits) == (4, None, None, 0)
    found = compare_recorded(SAME, RECORDED, dtype="float32", exact=True)
    assert (found.compared, found.bits, found.token) == (4, None, None)


def test_the_first_place_is_the_first_that_was_drawn():
    both = other(("a", 1)) | {("a", 0): replace(SAME["a", 0], digest=2)}
    found = compare(SAME, both, RECORDED, dtype="float32", exact=True)
    assert found.bits is not None
    assert (found.bits.request_id, found.bits.output_index, found.bits.step) == ("a", 0, 1)
    assert (found.bits.one, found.bits.other, found.bits.cause) == (f"{101:016x}", f"{2:016x}", "corruption")
    assert (found.other_bits, found.token) == (2, None)


@pytest.mark.parametrize(("gap", "cause"), [(0.0, "noise"), (1.0, "noise"), (1.01, "corruption")])
def test_another_token_is_noise_while_the_recorded_one_is_near_the_top(gap, cause):
    drawn = other(("b", 1), token=8, gap=gap * NOISE["bfloat16"], margin=0.1)
    found = compare(SAME, drawn, RECORDED, dtype="bfloat16", exact=False)
    assert found.token is not None
    assert (found.token.one, found.token.other, found.token.margin) == ("token 7", "token 8", 0.1)
    assert (found.token.cause, found.beyond_noise) == (cause, int(cause == "corruption"))
    found = compare_recorded(drawn, RECORDED, dtype="bfloat16", exact=False)
    assert found.token is not None
    assert (found.token.cause, found.beyond_noise) == (cause, int(cause == "corruption"))


def test_between_exact_computations_nothing_is_noise():
    found = compare(SAME, other(("b", 1), token=8, gap=0.0), RECORDED, dtype="bfloat16", exact=True)
    assert found.token is not None
    assert found.token.cause == "corruption"
    found = compare_recorded(other(("b", 1), token=8, gap=0.0), RECORDED, dtype="bfloat16", exact=True)
    assert (found.beyond_noise, found.other_bits) == (1, 1)


def test_bits_of_another_platform_are_not_compared_with_the_record():
    found = compare_recorded(other(("b", 1)), RECORDED, dtype="bfloat16", exact=False)
    assert (found.bits, found.token) == (None, None)


def test_a_token_that_was_drawn_with_noise_is_not_judged_by_its_distance():
    sampled = replace(RECORDED, sampled=frozenset({"b"}))
    drawn = other(("b", 1), token=8, gap=99.0)
    assert compare_recorded(drawn, sampled, dtype="float32", exact=False).token is None
    assert compare(SAME, drawn, sampled, dtype="float32", exact=False).beyond_noise == 0


def test_logits_that_are_not_finite_are_never_noise():
    drawn = other(("b", 1), token=-1, finite=False, margin=None, gap=None)
    found = compare(SAME, drawn, RECORDED, dtype="bfloat16", exact=False)
    assert found.token is not None
    assert (found.token.other, found.token.cause) == ("no finite logits", "corruption")


@given(st.dictionaries(st.sampled_from(PLACES), st.tuples(st.integers(6, 8), st.integers(0, 1), st.floats(0, 5))))
def test_counts_and_first_places_agree(drawn):
    draws = {place: Draw(token=token, digest=bits, gap=gap) for place, (token, bits, gap) in drawn.items()}
    one = {place: Draw(token=7, digest=0, gap=0.0) for place in PLACES}
    found = compare(one, draws, RECORDED, dtype="bfloat16", exact=False)
    assert found.compared == len(draws)
    assert (found.bits is None) == (found.other_bits == 0)
    assert (found.token is None) == (found.other_tokens == 0)
    assert found.beyond_noise <= found.other_tokens <= found.other_bits
