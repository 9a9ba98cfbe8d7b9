"""What a search finds, that it ends, and that it has nothing more to find in what it found."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.engine.schedule import OnExhausted
from replay.minimise.order import cost
from replay.minimise.trials import TimeIsUp
from replay.minimise.words import in_words, needs_in_words, settings_in
from replay.scenario.change import without
from replay.scenario.play import play
from replay.scenario.scenario import Scenario
from tests.replay.minimise.runs import Here, exhaustion, failure_of, leak, scenario, searching, shows, visit


def test_of_a_leak_the_two_that_make_it_are_left(tmp_path):
    made = leak()
    with searching(made, tmp_path) as (search, _, _):
        found = search.run(made)
    assert [one.id for one in found.visits] == ["r98", "r99"]
    assert in_words(found) == "2 requests, 7 tokens, 3 blocks"
    assert needs_in_words(settings_in(found)) == (
        "needs prefix cache, checks of what a step reads, quirk prefix-leak and an abort together"
    )
    assert shows(found, failure_of(made))
    assert found.config.kv_quant_bits == 0
    assert [str(quirk) for quirk in found.quirks] == ["prefix-leak"]
    first, second = (set(one.prompt) for one in found.visits)
    assert first == second == {0}


def test_a_pool_comes_down_with_those_who_fill_it(tmp_path):
    made = exhaustion()
    with searching(made, tmp_path) as (search, _, _):
        found = search.run(made)
    assert in_words(found) == "1 request, 3 tokens, 1 block"
    assert settings_in(found) == ["policy raise"]
    assert shows(found, failure_of(made))


def test_a_limit_of_length_comes_down_with_what_it_limits(tmp_path):
    made = scenario(visit(0, length=20, limit=0), visit(1, arrives=2), max_model_len=40)
    with searching(made, tmp_path) as (search, _, _):
        found = search.run(made)
    assert in_words(found) == "1 request, 2 tokens, 1 block"
    assert (found.config.max_model_len, len(found.visits[0].prompt)) == (2, 1)
    assert failure_of(found) == failure_of(made)


def test_the_search_of_what_was_found_finds_nothing_else(tmp_path):
    made = leak()
    with searching(made, tmp_path) as (search, _, _):
        found = search.run(made)
    with searching(found, tmp_path / "again") as (again, trials, _):
        assert again.run(found).digest == found.digest
        assert trials.counts.played > 0


def test_every_improvement_is_smaller_and_shows_the_failure(tmp_path):
    made = leak()
    seen: list[Scenario] = []
    with searching(made, tmp_path, on_stage=lambda stage, best: seen.append(best)) as (search, _, _):
        search.run(made)
    steps = list(dict.fromkeys(seen))
    assert len(steps) > 10
    assert all(cost(after) <= cost(before) for before, after in itertools.pairwise(steps))
    assert all(shows(one, failure_of(made)) for one in steps)


def test_another_failure_is_kept_aside_and_not_taken(tmp_path):
    # Without the first request the pool is never empty, and the second one reaches the length that is allowed.
    made = scenario(visit(0, length=60, limit=30), visit(1, length=8, limit=0), num_blocks=24, max_model_len=60 + 35)
    made = replace(made, config=replace(made.config, on_kv_exhausted=OnExhausted.TRUNCATE))
    identity = failure_of(made)
    with searching(made, tmp_path) as (search, _, others):
        found = search.run(made)
    assert failure_of(found) == identity
    assert len(play(found).failures) == 1
    assert identity not in others.files
    (other,) = [one for one in others.files if one.invariant == "max-model-len"]
    kept = json.loads(others.files[other].read_text())
    assert failure_of(Scenario.from_json(kept["scenario"])) == other
    assert others.files[other].parent == tmp_path / "others"


def test_where_the_cheap_target_was_too_hopeful_the_one_that_counts_is_asked_each_time(tmp_path):
    class Picky(Here):
        """Its engine does not show the failure without r0."""

        def _run(self, target, job):
            result = super()._run(target, job)
            assert result.report is not None
            if target == "inference" and all(one["id"] != "r0" for one in job["scenario"]["visits"]):
                result.report["shows"] = False
            return result

    made = leak()
    with searching(made, tmp_path, trials=Picky, engine="inference") as (search, _, _):
        assert search.probe(made).targets == ("schedule", "inference")
        found = search.run(made)
    assert [one.id for one in found.visits] == ["r0", "r98", "r99"]
    assert cost(found) < cost(without(made, {"r1", "r2"}))
    assert shows(found, failure_of(made))


def test_the_time_ends_a_search_and_what_it_found_is_kept(tmp_path):
    made = leak()
    ticks = iter(range(10_000))
    with (
        searching(made, tmp_path, deadline=12.0, clock=lambda: float(next(ticks))) as (search, _, _),
        pytest.raises(TimeIsUp),
    ):
        search.run(made)
    kept = Scenario.from_json(json.loads((tmp_path / "work" / "best.json").read_text()))
    assert cost(kept) < cost(made)
    assert shows(kept, failure_of(made))


@settings(max_examples=8)
@given(st.data())
def test_any_run_that_fails_ends_in_a_fixpoint_with_its_failure(tmp_path_factory, data):
    count = data.draw(st.integers(1, 5), label="requests")
    visits = [
        visit(
            number,
            length=data.draw(st.integers(1, 30)),
            limit=data.draw(st.integers(1, 40)),
            arrives=3 * number,
            leaves=data.draw(st.none() | st.integers(3 * number, 40)),
        )
        for number in range(count)
    ]
    made = scenario(
        *visits,
        num_blocks=data.draw(st.integers(8, 14)),
        on_kv_exhausted=data.draw(st.sampled_from([OnExhausted.RAISE, OnExhausted.TRUNCATE])),
        prefix_cache=data.draw(st.booleans()),
    )
    if play(made).signature is None:
        return
    folder = tmp_path_factory.mktemp("search")
    with searching(made, folder) as (search, _, _):
        found = search.run(made)
    assert cost(found) <= cost(made)
    assert shows(found, failure_of(made))
    with searching(found, folder / "again") as (again, _, _):
        assert again.run(found).digest == found.digest
