"""The verdict's rules, one by one, and what must never happen whatever the evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.divergence import Divergence, token_cause
from replay.report import bisect_code, exit_code, finite
from replay.signature import Identity, Location, Signature
from replay.verdict import Evidence, Reason, Verdict, decide

CUT = Signature(Identity(kind="silent-truncation", invariant="kv-pool-exhausted"), Location(request_id="a", step=9))
ELSEWHERE = replace(CUT, location=Location(request_id="b", step=9))
NAN = Signature(Identity(kind="non-finite"), Location(request_id="a", step=9))
DEATH = Signature(Identity(kind="process-death"), Location())
TIMEOUT = Signature(Identity(kind="timeout"), Location(request_id="a"))
PARTED = Divergence(kind="token", request_id="a", output_index=3, recorded="1", replayed="2")


def test_same_identity_at_the_same_place_is_reproduced():
    assert decide(CUT, Evidence(seen=[NAN, CUT])).verdict is Verdict.REPRODUCED


def test_the_same_kind_elsewhere_is_another_failure_on_the_same_dump_only():
    decision = decide(CUT, Evidence(seen=[ELSEWHERE]))
    assert (decision.verdict, decision.reason) == (Verdict.DIFFERENT_FAILURE, Reason.SAME_KIND_ELSEWHERE)
    assert decide(CUT, Evidence(seen=[ELSEWHERE], modified=True)).verdict is Verdict.REPRODUCED
    assert decide(CUT, Evidence(seen=[ELSEWHERE], foreign=True)).verdict is Verdict.REPRODUCED


def test_divergence_goes_before_whatever_failed_after_it():
    assert decide(CUT, Evidence(seen=[CUT], divergence=PARTED)).verdict is Verdict.DIVERGED


def test_nothing_seen_is_not_reproduced_and_nothing_expected_is_no_verdict():
    assert decide(CUT, Evidence(seen=[])).verdict is Verdict.NOT_REPRODUCED
    decision = decide(None, Evidence(seen=[]))
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.NOTHING_RECORDED)


def test_a_killed_process_is_not_a_failure_of_its_steps():
    decision = decide(DEATH, Evidence(seen=[]))
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.PROCESS_DEATH)
    assert decide(DEATH, Evidence(seen=[CUT])).verdict is Verdict.DIFFERENT_FAILURE


def test_a_deadline_of_the_outside_world_cannot_be_seen():
    assert decide(TIMEOUT, Evidence(seen=[])).reason is Reason.EXTERNAL_CAUSE


signatures = st.builds(
    Signature,
    st.builds(Identity, kind=st.sampled_from(["silent-truncation", "non-finite", "process-death", "timeout"])),
    st.builds(Location, request_id=st.sampled_from([None, "a", "b"]), step=st.sampled_from([None, 1, 2])),
)
evidence = st.builds(
    Evidence,
    seen=st.lists(signatures, max_size=3),
    divergence=st.sampled_from([None, PARTED]),
    modified=st.booleans(),
    foreign=st.booleans(),
    missing=st.sampled_from([Reason.NONE, Reason.TOKENS_ABSENT]),
)


@given(st.none() | signatures, evidence)
def test_reproduced_is_never_said_without_a_failure_of_that_identity(expected, given_evidence):
    decision = decide(expected, given_evidence)
    if decision.verdict is Verdict.REPRODUCED:
        assert expected is not None
        assert expected.identity in [signature.identity for signature in given_evidence.seen]
        assert not given_evidence.missing
        assert given_evidence.modified or given_evidence.divergence is None


@pytest.mark.parametrize(
    ("verdict", "expected", "code"),
    [
        (Verdict.REPRODUCED, None, 0),
        (Verdict.NOT_REPRODUCED, None, 10),
        (Verdict.DIFFERENT_FAILURE, None, 11),
        (Verdict.DIVERGED, None, 12),
        (Verdict.INCONCLUSIVE, None, 20),
        (Verdict.NOT_REPRODUCED, Verdict.NOT_REPRODUCED, 0),
        (Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, 13),
        (Verdict.DIVERGED, Verdict.NOT_REPRODUCED, 12),
    ],
)
def test_exit_codes(verdict, expected, code):
    assert exit_code(verdict, expected=expected) == code


def test_bisect_skips_what_is_neither_good_nor_bad():
    assert {verdict: bisect_code(verdict) for verdict in Verdict} == {
        Verdict.REPRODUCED: 1,
        Verdict.NOT_REPRODUCED: 0,
        Verdict.DIFFERENT_FAILURE: 125,
        Verdict.DIVERGED: 125,
        Verdict.INCONCLUSIVE: 125,
    }


def test_rounding_explains_small_gaps_in_forced_mode_only():
    assert token_cause(strict=False, gap=0.5, dtype="bfloat16") == "noise"
    assert token_cause(strict=True, gap=0.5, dtype="bfloat16") == "corruption"
    assert token_cause(strict=False, gap=50.0, dtype="bfloat16") == "corruption"
    assert token_cause(strict=False, gap=None, dtype="float32") == "corruption"


def test_nan_becomes_null_and_is_flagged():
    flags: list[str] = []
    assert finite({"a": [1.0, float("nan")], "b": {"c": float("inf")}}, "", flags) == {
        "a": [1.0, None],
        "b": {"c": None},
    }
    assert flags == ["a[1]", "b.c"]


@pytest.mark.parametrize("kind", ["bogus", ""])
def test_a_kind_that_no_replay_can_show_is_inconclusive_whatever_failed(kind):
    expected = Signature(Identity(kind=kind), Location())
    for seen in ([], [CUT], [expected]):
        decision = decide(expected, Evidence(seen=seen))
        assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.KIND_UNSUPPORTED)
