"""Each named defect breaks the one rule that it names, and each rule has a defect."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, find, given, settings

from dumps.schema import state_pb2 as pb
from dumps.strategies.defects import DEFECTS, defective, with_defect
from dumps.strategies.programs import programs
from dumps.strategies.valid import states
from dumps.validate import validate
from tests.dumps.validate_rules import rules_in_code

UNSHRUNK = settings(max_examples=2000, phases=[Phase.generate], database=None)
BASES = {"engine": states(), "cache": states(prefix_cache=True), "program": programs()}


def test_each_rule_in_the_code_has_a_defect_and_no_defect_breaks_an_unknown_one():
    assert {defect.rule for defect in DEFECTS} == rules_in_code()


def test_names_are_names():
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)


@pytest.mark.parametrize("of", BASES)
def test_a_defect_breaks_its_rule_alone_wherever_a_state_has_room_for_it(of):
    met: Counter[str] = Counter()

    @settings(max_examples=100, phases=[Phase.generate])
    @given(BASES[of])
    def check(state):
        for defect in DEFECTS:
            for place in range(len(list(defect.places(state)))):
                if place and defect.of != of:
                    break
                spoilt = pb.RuntimeState()
                spoilt.CopyFrom(state)
                list(defect.places(spoilt))[place]()
                found = {finding.rule for finding in validate(spoilt)}
                assert found == {defect.rule}, f"{defect.name}, place {place}"
                met[defect.name] += 1

    check()
    for defect in DEFECTS:
        if defect.of == of and not met[defect.name]:
            state = find(with_defect(defect), lambda state: True, settings=UNSHRUNK)
            assert {finding.rule for finding in validate(state)} == {defect.rule}, defect.name


@given(defective())
def test_a_drawn_one_is_what_it_says(made):
    defect, state = made
    assert {finding.rule for finding in validate(state)} == {defect.rule}


@given(states() | programs())
def test_looking_for_places_changes_nothing(state):
    before = state.SerializeToString(deterministic=True)
    assert sum(len(list(defect.places(state))) for defect in DEFECTS) > 10
    assert state.SerializeToString(deterministic=True) == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "requests", "steps", "tokens"),
    [("block free and used", 1, 4, 4), ("other number of token ids than tokens", 1, 2, 4), ("missing step", 0, 2, 0)],
)
def test_they_shrink_toward_little_with_room_for_the_defect(name, requests, steps, tokens):
    [defect] = [defect for defect in DEFECTS if defect.name == name]
    state = find(with_defect(defect), lambda state: True, settings=settings(database=None))
    assert len(state.requests) <= requests
    assert len(state.steps) <= steps
    assert sum(one.num_prompt_tokens + one.num_output_tokens for one in state.requests) <= tokens
