"""Taking visits away leaves the others' times as they are, and quirks on the visits that they named."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from replay.engine.quirks import parse_quirk
from replay.engine.request import FinishCause
from replay.engine.schedule import EngineConfig
from replay.scenario.change import aimed_at, with_answers, with_visit, with_visits, without
from replay.scenario.play import Answered, play
from replay.scenario.scenario import Scenario, Visit

PEOPLE = tuple(Visit(id=name, prompt=(1,), arrives=place) for place, name in enumerate("abcd"))


def scenario(number: int, quirk: str = "kv-bit-flip") -> Scenario:
    text = f"{quirk}:request={number},layer=0,position=2,after_step=3"
    config = EngineConfig(num_blocks=8, max_model_len=40)
    return Scenario(config=config, visits=PEOPLE, quirks=(parse_quirk(text), parse_quirk("prefix-leak")))


@given(
    quirk=st.sampled_from(["kv-bit-flip", "int8-zero-scale"]),
    number=st.integers(0, 3),
    gone=st.sets(st.sampled_from("abcd")),
)
def test_a_quirk_stays_on_its_visit_and_goes_with_it(quirk, number, gone):
    left = without(scenario(number, quirk), gone)
    assert [visit.id for visit in left.visits] == [name for name in "abcd" if name not in gone]
    assert all(visit in PEOPLE for visit in left.visits)
    names = [quirk.name for quirk in left.quirks]
    if "abcd"[number] in gone:
        assert names == ["prefix-leak"]
    else:
        assert names == [quirk, "prefix-leak"]
        assert aimed_at(left.quirks[0], left.visits) == "abcd"[number]
        assert left.quirks[0].parameters["after_step"] == 3


def test_a_visit_that_comes_later_takes_its_quirk_along():
    late = with_visit(scenario(1), replace(PEOPLE[1], arrives=9))
    assert [visit.id for visit in late.visits] == ["a", "c", "d", "b"]
    assert late.quirks[0].parameters["request"] == 3


def test_visits_that_come_together_keep_their_order():
    together = with_visits(scenario(0), [replace(visit, arrives=5) for visit in reversed(PEOPLE)])
    assert [visit.id for visit in together.visits] == ["d", "c", "b", "a"]
    assert together.quirks[0].parameters["request"] == 3


def test_a_quirk_on_nobody_goes_before_somebody_takes_the_number():
    nobody = scenario(4)
    assert aimed_at(nobody.quirks[0], nobody.visits) is None
    more = with_visits(nobody, [*PEOPLE, Visit(id="e", prompt=(1,), arrives=9)])
    assert [quirk.name for quirk in more.quirks] == ["prefix-leak"]


def test_what_a_model_drew_is_what_a_play_without_one_draws():
    plain = Scenario(config=EngineConfig(num_blocks=8, max_model_len=40), visits=PEOPLE, eos_token_ids=(2,))
    drawn = [
        Answered(id="a", output=(5, 6, 2), cause=FinishCause.EOS),
        Answered(id="b", output=(7,) * 39, cause=FinishCause.MAX_MODEL_LEN),
        Answered(id="c", output=(8, 9), cause=FinishCause.STOP_STRING),
    ]
    known = with_answers(plain, drawn)
    assert [visit.ends for visit in known.visits] == [FinishCause.EOS, None, FinishCause.STOP_STRING, None]
    assert list(play(known).answers[:3]) == drawn
    assert known.visit("d") == plain.visit("d")
