"""What may become the best scenario, and what may not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from replay.engine.schedule import EngineConfig, OnExhausted
from replay.minimise.climb import Climb, Facts, Judge
from replay.minimise.others import Others
from replay.minimise.trials import Bench
from replay.minimise.work import Work
from replay.scenario.change import without
from replay.scenario.play import play
from replay.scenario.scenario import Scenario
from replay.signature import Signature
from tests.replay.minimise.runs import Here, dump_of, failure_of, leak, scenario, visit


@contextlib.contextmanager
def judging(made: Scenario, folder, allowed=frozenset(), **facts) -> Iterator[tuple[Judge, Others]]:
    identity = failure_of(made)
    bench = Bench(dump=dump_of(made, folder / "dump.pplx"), wanted=identity)
    known = Facts(steps={"schedule": 1000}, allowed={"schedule": allowed}, **facts)
    others = Others(folder / "others")
    with contextlib.closing(Work(folder / "work", {})) as work, Here(bench, work, trial_s=30.0) as trials:
        yield Judge(trials, known, others), others


def test_a_run_with_a_new_failure_before_the_wanted_one_is_not_taken(tmp_path):
    # The first is cut at the allowed length; then the pool has no block for the other two.
    later = [visit(number, length=20, limit=12, arrives=10) for number in (1, 2)]
    limits = EngineConfig(num_blocks=12, max_model_len=34, block_size=4, max_num_batched_tokens=16)
    made = scenario(visit(0, length=30, limit=0), *later)
    made = replace(made, config=replace(limits, on_kv_exhausted=OnExhausted.RAISE))
    first, last = (Signature.of(one).identity for one in play(made).failures)
    assert (first.invariant, last.kind) == ("max-model-len", "exception")
    with judging(made, tmp_path) as (judge, others):
        assert not judge.verdict(made, ("schedule",))[0]
        assert list(others.files) == [first]
    (tmp_path / "dump.pplx").unlink()
    with judging(made, tmp_path, allowed=frozenset({first})) as (judge, _):
        assert judge.verdict(made, ("schedule",))[0]


def test_nothing_larger_is_taken_even_if_it_shows_the_failure(tmp_path):
    made = leak()
    small = without(made, {"r0"})
    with judging(made, tmp_path) as (judge, _):
        climb = Climb(small, judge, ("schedule",))
        assert not climb.take(made)
        assert not climb.take(small)
        assert climb.take(without(small, {"r1"}))
        assert len(climb.best.visits) == len(made.visits) - 2


def test_what_a_server_would_refuse_is_not_taken_unless_it_was_so(tmp_path):
    made = leak()
    limits = replace(made.config, max_model_len=30)
    long = replace(without(made, {"r1", "r2"}), config=limits)
    long = replace(long, visits=(replace(long.visits[0], prompt=(5,) * 31), *long.visits[1:]))
    allowed = frozenset(Signature.of(one).identity for one in play(long, wanted=failure_of(made)).failures)
    for refuses in (False, True):
        (tmp_path / "dump.pplx").unlink(missing_ok=True)
        with judging(made, tmp_path, allowed=allowed, refuses=refuses) as (judge, _):
            assert Climb(made, judge, ("schedule",)).take(long) is refuses


def test_a_scenario_without_requests_is_none(tmp_path):
    made = leak()
    with judging(made, tmp_path, pool_bound=True, length_bound=True) as (judge, _):
        assert not Climb(made, judge, ("schedule",)).take_fitted(replace(made, visits=()))
