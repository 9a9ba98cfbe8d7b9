"""Trials in workers: those that hang or die say no, and none is played twice."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from replay.minimise.trials import TimeIsUp, TrialFailed, Trials
from replay.scenario.change import without
from replay.scenario.scenario import Scenario
from tests.replay.minimise.runs import Here, failure_of, leak, searching, visit

IN_WORKERS = functools.partial(Trials, job_function="tests.replay.minimise.trial_jobs:hangs_without_r98")


def test_a_trial_that_hangs_or_kills_its_worker_says_no_and_the_next_one_has_a_new_worker(tmp_path):
    made = leak()
    with searching(made, tmp_path, trials=IN_WORKERS, trial_s=0.2, grace_s=0.3) as (_, trials, _):
        hung = trials.play(without(made, {"r98"}), "schedule", 100)
        died = trials.play(without(made, {"r0"}), "schedule", 100)
        well = trials.play(made, "schedule", 100)
        again = trials.play(without(made, {"r98"}), "schedule", 100)
    assert (hung.shows, hung.problem.partition(":")[0]) == (False, "BudgetSpent")
    assert (died.shows, died.problem.partition(":")[0]) == (False, "WorkerDied")
    assert well.shows
    assert again == hung
    assert (trials.counts.played, trials.counts.known, trials.counts.lost) == (3, 1, 2)


def test_what_a_lost_trial_said_is_not_kept_for_another_process(tmp_path):
    made = leak()
    with searching(made, tmp_path, trials=IN_WORKERS, trial_s=0.2, grace_s=0.3) as (_, trials, _):
        trials.play(without(made, {"r0"}), "schedule", 100)
    assert (tmp_path / "work" / "trials.jsonl").read_bytes() == b""


def test_a_search_goes_on_past_trials_that_hang_or_die(tmp_path):
    made = leak(others=2)
    with searching(made, tmp_path, trials=IN_WORKERS, trial_s=0.2, grace_s=0.3) as (search, trials, _):
        found = search.run(made)
    assert [one.id for one in found.visits] == ["r98", "r99"]
    assert trials.counts.lost > 0


def test_what_is_known_of_a_longer_play_holds_for_a_shorter_one(tmp_path):
    made = leak()
    with searching(made, tmp_path) as (_, trials, _):
        full = trials.play(made, "schedule", 1000)
        assert full.shows
        assert trials.play(made, "schedule", full.steps) == full
        assert not trials.play(made, "schedule", full.steps - 1).shows
    assert (trials.counts.played, trials.counts.known) == (1, 2)


def test_a_play_that_was_cut_short_is_played_again_when_it_may_be_longer(tmp_path):
    made = leak()
    with searching(made, tmp_path) as (_, trials, _):
        assert not trials.play(made, "schedule", 3).shows
        assert trials.play(made, "schedule", 1000).shows
    assert trials.counts.played == 2


def test_a_run_without_the_failure_is_not_recorded(tmp_path):
    made = leak()
    harmless = replace(made, visits=(visit(0),), quirks=())
    said = pytest.raises(TrialFailed, match="does not show the wanted failure")
    with searching(made, tmp_path) as (_, trials, _), said:
        trials.record(harmless, "schedule", 100)


def test_after_its_time_nothing_is_played(tmp_path):
    made = leak()
    with searching(made, tmp_path, deadline=1.0, clock=lambda: 1.0) as (_, trials, _), pytest.raises(TimeIsUp):
        trials.play(made, "schedule", 10)


def test_a_worker_that_tells_something_else_says_no(tmp_path):
    class Strange(Here):
        def _run(self, target, job):
            result = super()._run(target, job)
            assert result.report is not None
            del result.report["seen"]
            return result

    made: Scenario = leak()
    with searching(made, tmp_path, trials=Strange) as (_, trials, _):
        trial = trials.play(made, "schedule", 1000)
    assert not trial.shows
    assert trial.problem.startswith("the worker told something else")
    assert failure_of(made).kind == "contamination"
