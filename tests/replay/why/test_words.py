"""What a table says, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from replay.why.change import Change, Left
from replay.why.effect import Effect, Trial
from replay.why.words import in_words

CACHE = Change(settings={"cache": "false"}, subject="cache", needs="the prefix cache", points_to="Look at the cache.")
INT8 = Change(settings={"bits": "0"}, subject="bits", needs="the int8 KV cache", points_to="Look at scales.")
MORE = Change(settings={"blocks": "8"}, subject="blocks", needs="a small pool", points_to="Give it more.")
ENOUGH = Change(settings={"blocks": "9"}, subject="blocks", needs="a small pool", points_to="Give it more.")
GONE, STAYS, ANOTHER, UNSAID = Effect.VANISHES, Effect.STAYS, Effect.ANOTHER, Effect.CANNOT_TELL


def trial(*changes: Change, effect: Effect, seen: str = "", answers_differ: bool | None = None) -> Trial:
    return Trial(changes=changes, effect=effect, seen=seen, answers_differ=answers_differ)


def words(
    singles: Sequence[Trial], pairs: Sequence[Trial] = (), left: Sequence[Left] = (), *, wanted: bool = True
) -> str:
    return " ".join(in_words(singles, pairs, left, pairs_wanted=wanted))


def test_one_change():
    assert words([trial(CACHE, effect=GONE), trial(INT8, effect=STAYS)]) == (
        "The failure needs the prefix cache: with cache=false it is gone. Look at the cache."
    )


def test_two_changes_each_of_which_is_enough():
    assert words([trial(CACHE, effect=GONE), trial(INT8, effect=GONE)]) == (
        "The failure needs the prefix cache and the int8 KV cache together: either of the two changed (cache=false or "
        "bits=0), and it is gone. Look at the cache. Look at scales."
    )


def test_variants_of_a_change_count_once():
    assert words([trial(MORE, effect=GONE), trial(ENOUGH, effect=GONE)]) == (
        "The failure needs a small pool: with blocks=8 it is gone. Give it more."
    )


def test_a_pair_where_either_cause_is_enough():
    singles = [trial(CACHE, effect=STAYS), trial(INT8, effect=STAYS)]
    assert words(singles, [trial(CACHE, INT8, effect=GONE)]) == (
        "No single change gives a run without a failure. cache=false and bits=0 together do: either the prefix cache "
        "or the int8 KV cache is enough for it, and both have to go. Look at the cache. Look at scales."
    )


def test_a_pair_where_one_failure_hides_another():
    singles = [trial(CACHE, effect=STAYS), trial(INT8, effect=ANOTHER, seen="stall")]
    text = words(singles, [trial(CACHE, INT8, effect=GONE), trial(CACHE, MORE, effect=GONE)])
    assert "with bits=0 alone another failure shows (stall), and that one needs the prefix cache." in text
    assert "So do cache=false and blocks=8." in text
    assert "With bits=0 it gives way to another failure: stall." in text


def test_nothing_that_was_tried():
    text = words([trial(CACHE, effect=STAYS)], wanted=False)
    assert text.startswith("None of the 1 single change gives a run without a failure. Pairs were not tried.")
    assert "It needs none of these settings" in text


def test_cannot_tell_is_never_told_as_gone():
    text = words([trial(CACHE, effect=UNSAID)], [trial(CACHE, INT8, effect=UNSAID)])
    assert "needs the prefix cache" not in text
    assert "Nothing can be told of cache=false: see the notes. Nor of 1 pair, such as cache=false and bits=0." in text


def test_what_could_not_be_tried_is_told_with_its_reason():
    left = [Left("a", "no model ran", applies=True), Left("b", "no model ran", applies=True), Left("c", "it had none")]
    assert words([], left=left).endswith("Not tried: a and b, since no model ran.")


def test_answers_that_differ_under_a_failure_that_stays():
    assert "Answers differ with cache=false, and the failure stays" in words(
        [trial(CACHE, effect=STAYS, answers_differ=True)]
    )
