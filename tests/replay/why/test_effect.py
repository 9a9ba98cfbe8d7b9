"""From the report of a replay to what a change did."""

from __future__ import annotations

from typing import Any

import pytest

from replay.isolate.result import Result, RunError
from replay.verdict import Verdict
from replay.why.change import INCLUDED, KV, SCHEDULE, Change
from replay.why.effect import Baseline, Effect, Trial, attributed, failure_in_words, trial_of

HALVED = Change(settings={"kv.num_blocks": "8"}, subject="kv.num_blocks", needs="a pool")
SERIAL = Change(settings={"a": "1"}, subject="a", needs="others", includes=frozenset({SCHEDULE}))
RECOMPUTED = Change(options=INCLUDED[KV], subject=KV, needs="contents")
DERIVED = Change(options=INCLUDED[SCHEDULE], subject=SCHEDULE, needs="schedule")


def signature(kind: str = "stall", request: str = "r1", step: int = 4) -> dict[str, Any]:
    identity = {"kind": kind, "invariant": "admission-possible", "exception_type": ""}
    return {"identity": identity, "location": {"request_id": request, "step": step}}


def report(verdict: Verdict, **changes: Any) -> dict[str, Any]:
    seen = None if verdict in (Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE) else signature()
    plain: dict[str, Any] = {"answers": None, "divergence": None, "findings": [], "mode": "strict", "reason_code": ""}
    return {"verdict": verdict.value, "signature": seen, **plain, **changes}


BASELINE = Baseline(report=report(Verdict.REPRODUCED))


def told(verdict: Verdict, **changes: Any) -> Trial:
    return trial_of((HALVED,), Result(report=report(verdict, **changes)), BASELINE)


@pytest.mark.parametrize(
    ("verdict", "effect"),
    [
        (Verdict.NOT_REPRODUCED, Effect.VANISHES),
        (Verdict.REPRODUCED, Effect.STAYS),
        (Verdict.DIFFERENT_FAILURE, Effect.ANOTHER),
        (Verdict.DIVERGED, Effect.DIVERGES),
        (Verdict.INCONCLUSIVE, Effect.CANNOT_TELL),
    ],
)
def test_every_verdict_has_its_effect(verdict, effect):
    assert told(verdict).effect is effect


def test_the_same_kind_elsewhere_is_still_that_failure():
    trial = told(Verdict.DIFFERENT_FAILURE, reason_code="same-kind-elsewhere", signature=signature(step=5))
    assert (trial.effect, trial.notes) == (Effect.STAYS, ("in another place: request r1, step 5",))


def test_a_replay_without_a_report_tells_nothing():
    error = RunError(kind="BudgetSpent", message="too slow", remedy="wait", exit_code=21)
    trial = trial_of((HALVED,), Result(error=error), BASELINE)
    assert (trial.effect, trial.error, trial.notes) == (Effect.CANNOT_TELL, "BudgetSpent", ("too slow", "wait"))


def test_other_answers_are_told_though_the_failure_stays():
    first = {"request_id": "r2", "step": None, "output_index": 3, "recorded": "token 1", "replayed": "token 2"}
    trial = told(Verdict.REPRODUCED, answers={"compared": 3, "as_recorded": 2, "first_difference": first})
    assert trial.answers_differ
    assert trial.changed_something
    assert trial.notes == (
        "1 of 3 answers differ, first that of request r2 at output token 3: recorded token 1, replayed token 2",
    )
    same = told(Verdict.REPRODUCED, answers={"compared": 3, "as_recorded": 3, "first_difference": None})
    assert (same.answers_differ, same.changed_something) == (False, False)


def test_a_forced_run_that_parts_is_told_with_its_margin():
    parted = {"kind": "token", "request_id": "r2", "step": 7, "output_index": 3, "recorded": "5", "replayed": "6"}
    trial = told(Verdict.DIVERGED, divergence={**parted, "margin": 0.25, "cause": "noise"}, mode="forced")
    assert trial.notes == (
        "token of request r2 parts from the record at output token 3, step 7: recorded 5, replayed 6 "
        "(noise; the top two logits are 0.25 apart)",
        "forced: recorded tokens were fed, and bits not compared",
    )


def trial(*changes: Change, effect: Effect = Effect.VANISHES, **facts: Any) -> Trial:
    return Trial(changes=changes, effect=effect, **facts)


def test_what_only_left_the_contents_out_does_not_count_as_vanished():
    read = trial(HALVED, read_contents=True)
    without, pair = trial(SERIAL), trial(HALVED, SERIAL)
    found = attributed([trial(RECOMPUTED), read, without, pair])
    assert [one.effect for one in found] == [
        Effect.VANISHES,
        Effect.VANISHES,
        Effect.CANNOT_TELL,
        Effect.CANNOT_TELL,
    ]
    assert "without them the failure is gone anyway" in found[2].notes[-1]


def test_what_only_derived_the_schedule_again_does_not_count_as_vanished():
    found = attributed([trial(DERIVED), trial(SERIAL), trial(HALVED), trial(HALVED, SERIAL)])
    assert [one.effect is Effect.VANISHES for one in found] == [True, False, True, False]


def test_where_those_change_nothing_by_themselves_all_stands():
    trials = [trial(RECOMPUTED, effect=Effect.STAYS), trial(DERIVED, effect=Effect.ANOTHER), trial(SERIAL)]
    assert attributed(trials) == trials


def test_a_failure_is_named_with_its_place():
    assert failure_in_words(report(Verdict.REPRODUCED)) == "stall (admission-possible) at request r1, step 4"
    assert failure_in_words(report(Verdict.REPRODUCED, world={})) == "stall (admission-possible) at request r1, call 4"
    assert failure_in_words(report(Verdict.NOT_REPRODUCED)) == ""
