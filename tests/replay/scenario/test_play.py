"""A play without a model: who comes and leaves when, what ends it, and that it is the same each time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from replay.engine.failure import FailureKind
from replay.engine.quirks import parse_quirk
from replay.engine.request import FinishCause, SamplingParams
from replay.engine.schedule import EngineConfig, OnExhausted
from replay.scenario.play import Ended, play
from replay.scenario.scenario import Scenario, Visit
from replay.signature import Identity, Signature

CONFIG = EngineConfig(num_blocks=16, max_model_len=100, block_size=4)


def visit(name: str, length: int = 3, limit: int = 6, **changes: Any) -> Visit:
    made = Visit(id=name, prompt=tuple(range(length)), sampling=SamplingParams(max_tokens=limit))
    return replace(made, **changes)


def scenario(*people: Visit, quirks: tuple[str, ...] = (), checks: bool = False, **config: Any) -> Scenario:
    return Scenario(
        config=replace(CONFIG, **config),
        visits=people,
        quirks=tuple(map(parse_quirk, quirks)),
        checks=checks,
        eos_token_ids=(0,),
        vocab_size=320,
    )


def identities(played) -> list[tuple[str, str]]:
    return [(failure.kind.value, failure.invariant) for failure in played.failures]


def test_answers_are_those_of_the_record_and_then_filler_up_to_the_limit():
    played = play(scenario(visit("a", output=(7, 8)), visit("b", output=(7, 8), ends=FinishCause.STOP_STRING)))
    assert [(one.id, one.output, one.cause) for one in played.answers] == [
        ("a", (7, 8, 1, 1, 1, 1), FinishCause.MAX_TOKENS),
        ("b", (7, 8), FinishCause.STOP_STRING),
    ]
    assert (played.ended, played.steps, played.guessed_from) == (Ended.DONE, 6, 2)
    assert played.failures == ()
    assert played.signature is None


def test_filler_never_ends_an_answer():
    stops = SamplingParams(max_tokens=4, stop_token_ids=(1, 2))
    played = play(scenario(visit("a", sampling=stops)))
    assert played.answers[0].output == (3, 3, 3, 3)


def test_a_token_that_ends_an_answer_ends_it_where_it_stands():
    played = play(scenario(visit("a", output=(7, 0, 9))))
    assert (played.answers[0].output, played.answers[0].cause) == ((7, 0), FinishCause.EOS)
    assert played.guessed_from is None


def test_a_client_that_leaves_ends_its_request_before_that_step():
    played = play(scenario(visit("a", limit=50, leaves=3), visit("b", limit=2, arrives=1, leaves=40)))
    assert [(len(one.output), one.cause) for one in played.answers] == [
        (3, FinishCause.CLIENT_GONE),
        (2, FinishCause.MAX_TOKENS),
    ]


def test_a_deadline_is_a_failure_of_those_that_have_not_ended():
    late = visit("a", limit=50, leaves=3, leave_cause=FinishCause.TIMEOUT)
    early = visit("b", limit=2, leaves=3, leave_cause=FinishCause.TIMEOUT)
    played = play(scenario(late, early))
    assert identities(played) == [("timeout", "request-timeout")]
    assert played.failures[0].request_id == "a"
    assert (played.failures[0].step, played.failures[0].position) == (2, 6)


def test_idle_time_passes_at_once_and_later_visits_keep_their_distance():
    pair = (visit("b", arrives=100), visit("c", arrives=102, leaves=104))
    gap = play(scenario(visit("a", limit=3), *pair))
    close = play(scenario(visit("a", limit=3), replace(pair[0], arrives=3), replace(pair[1], arrives=5, leaves=7)))
    assert gap == close
    assert gap.steps == 9


@pytest.mark.parametrize("policy", OnExhausted)
def test_an_exhausted_pool_shows_what_its_policy_makes_of_it(policy):
    played = play(scenario(visit("a", 8, 40), visit("b", 8, 40), num_blocks=6, on_kv_exhausted=policy))
    seen = {
        OnExhausted.RAISE: [("exception", "kv-pool-exhausted")],
        OnExhausted.TRUNCATE: [("silent-truncation", "kv-pool-exhausted")] * 2,
        OnExhausted.PREEMPT: [("stall", "admission-possible")] * 2,
    }[policy]
    assert identities(played) == seen
    assert played.ended is (Ended.EXCEPTION if policy is OnExhausted.RAISE else Ended.DONE)
    assert played.signature == Signature.of(played.failures[-1])
    assert played.peak_used_blocks == 6


def test_a_stall_ends_its_request_and_the_next_one_runs():
    played = play(scenario(visit("a", 40), visit("b", 5), num_blocks=4))
    assert identities(played) == [("stall", "admission-possible")]
    assert [one.cause for one in played.answers] == [FinishCause.ENGINE_ERROR, FinishCause.MAX_TOKENS]


def test_the_wanted_failure_ends_the_play_where_it_shows():
    whole = play(scenario(visit("a", 8, 40), visit("b", 8, 40), num_blocks=6, on_kv_exhausted=OnExhausted.TRUNCATE))
    wanted = Signature.of(whole.failures[0]).identity
    cut = play(
        scenario(visit("a", 8, 40), visit("b", 8, 40), num_blocks=6, on_kv_exhausted=OnExhausted.TRUNCATE),
        wanted=wanted,
    )
    assert (cut.ended, cut.failures) == (Ended.WANTED, whole.failures[:1])
    assert cut.steps - 1 == whole.failures[0].step
    assert cut.shows(wanted)
    other = Identity(kind="stall")
    assert not cut.shows(other)


def test_another_failure_than_the_wanted_one_does_not_end_the_play():
    load = scenario(visit("a", 40), visit("b", 8, 90), num_blocks=4, on_kv_exhausted=OnExhausted.TRUNCATE)
    wanted = Signature.of(play(load).failures[-1]).identity
    played = play(load, wanted=wanted)
    assert identities(played) == [("stall", "admission-possible"), ("silent-truncation", "kv-pool-exhausted")]
    assert played.signature is not None
    assert played.signature.identity == wanted


def test_an_abort_that_comes_too_late_raises_only_under_its_quirk():
    people = (visit("a", limit=2, leaves=4), visit("b", limit=9))
    assert play(scenario(*people)).failures == ()
    played = play(scenario(*people, quirks=("abort-after-finish",)))
    assert (played.ended, played.failures[0].exception_type) == (Ended.EXCEPTION, "builtins.KeyError")
    assert (played.failures[0].request_id, played.failures[0].step) == ("a", 4)


def test_a_second_abort_is_too_late_as_well():
    twice = visit("a", limit=9, leaves=2, leaves_again=4)
    assert play(scenario(twice, visit("b", limit=9))).failures == ()
    played = play(scenario(twice, visit("b", limit=9), quirks=("abort-after-finish",)))
    assert [failure.exception_type for failure in played.failures] == ["builtins.KeyError"]


def test_checks_see_a_block_that_is_used_twice():
    quirk = "free-block-reuse:running=0,block=1,after_step=1"
    people = (visit("a", 12, 4), visit("b", 20, 12, prompt=tuple(range(50, 70)), arrives=1))
    unchecked = play(scenario(*people, quirks=(quirk,), num_blocks=8))
    assert [failure.kind for failure in unchecked.failures] == [FailureKind.EXCEPTION]
    checked = play(scenario(*people, quirks=(quirk,), num_blocks=8, checks=True))
    kinds = [failure.kind for failure in checked.failures]
    assert kinds[0] == kinds[-1] == FailureKind.CONTAMINATION
    assert FailureKind.EXCEPTION in kinds


def test_numbers_that_were_not_finite_are_no_failure_without_a_model():
    played = play(scenario(visit("a", output=(7, 8), ends=FinishCause.NON_FINITE)))
    assert (played.failures, played.answers[0].cause) == ((), FinishCause.NON_FINITE)


def test_a_play_stops_at_its_budget_of_steps_and_of_time():
    long = scenario(visit("a", limit=90))
    assert play(long, max_steps=5).ended is Ended.MAX_STEPS
    assert play(long, max_steps=5).steps == 5
    ticks = iter(range(100))
    played = play(long, seconds=10, clock=lambda: float(next(ticks)))
    assert (played.ended, played.steps) == (Ended.DEADLINE, 9)


def test_departures_of_one_step_come_in_their_order():
    """Blocks come back to the end of the free list, so who leaves first decides which block is handed out next."""

    def last_block(first: int, second: int) -> int:
        people = [visit(name, 4, 30, leaves=2, leave_rank=rank) for name, rank in (("a", first), ("b", second))]
        quirk = "free-block-reuse:running=0,block=2,after_step=3"
        reader = visit("c", 17, 9, arrives=3, prompt=tuple(range(100, 117)))
        played = play(
            scenario(*people, reader, visit("d", 8, 9, arrives=4), quirks=(quirk,), checks=True, num_blocks=6)
        )
        read = played.failures[0].read
        assert read is not None
        return read.block

    assert last_block(0, 1) != last_block(1, 0)


def test_sixty_four_requests_of_four_thousand_tokens_take_a_fraction_of_a_second_and_no_torch():
    program = """
import sys, time
import replay.scenario.extract, replay.scenario.record
from replay.engine.schedule import EngineConfig
from replay.engine.request import SamplingParams
from replay.scenario.play import play
from replay.scenario.scenario import Scenario, Visit
limit = SamplingParams(max_tokens=42)
people = tuple(Visit(id=f"r{n}", prompt=(n,) * 20, sampling=limit, arrives=n // 4) for n in range(64))
load = Scenario(config=EngineConfig(num_blocks=100, max_model_len=200), visits=people, checks=True)
began = time.process_time()
played = play(load)
spent = time.process_time() - began
assert played.steps > 100 and sum(len(one.output) for one in played.answers) == 64 * 42
assert spent < 1, spent
assert not {"torch", "transformers", "hypothesis", "aiohttp"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_play_is_the_same_each_time():
    people = [visit(f"r{n}", 3 + n % 7, 20, arrives=n // 2, leaves=None if n % 3 else n + 9) for n in range(20)]
    load = scenario(*people, num_blocks=12, prefix_cache=True, checks=True, max_num_seqs=4)
    assert play(load) == play(load)
