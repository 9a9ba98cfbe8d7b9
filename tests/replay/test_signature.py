from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from replay.engine.failure import Failure, FailureKind, NonFinitePlace, SlotRead
from replay.errors import UsageError
from replay.signature import Identity, Location, Signature, compare, normalise, of_any_run


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("request chatcmpl-1f-0 needs 1 more block", "request r7 needs 12 more block"),
        ("illegal access at 0x7ffe12", "illegal access at 0xdeadbeef"),
        ("took 3.25 s", "took 4 s"),
        ("loss 0.1", "loss 0.30000000000000004"),
        ("id 123e4567-e89b-42d3-a456-426614174000", "id 00000000-0000-4000-8000-000000000000"),
        ("  spaced\n out", "spaced out"),
    ],
)
def test_messages_of_one_failure_normalise_to_the_same(one, other):
    assert normalise(one) == normalise(other)


def test_messages_of_two_failures_stay_apart():
    assert normalise("pool exhausted") != normalise("pool corrupted")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<object at 0x7f10>", "<object at 0x7f22>"),
        ("token expired 0.266 s ago", "token expired 0.203 s ago"),
        ("after 31ms in Task-7", "after 0 ms in Task-12".replace("0 ms", "0ms")),
        ("failed at 2026-12-01 05:00:01.25", "failed at 2026-12-01 05:00:03"),
        ("no /tmp/tmpab12cd34/x", "no /tmp/tmpzz99yy88/x"),
        ("took 0.4123", "took 1e-06"),
    ],
)
def test_what_no_recorded_world_holds_still_differs_in_no_message(one, other):
    assert of_any_run(one) == of_any_run(other)


@pytest.mark.parametrize(
    ("one", "other"), [("answered 503", "answered 404"), ("'user 17'", "'user 99'"), ("12.50", "9")]
)
def test_other_numbers_are_told_apart(one, other):
    assert normalise(one) == normalise(other)
    assert of_any_run(one) != of_any_run(other)


@given(st.text())
def test_normalising_twice_changes_nothing(message):
    assert normalise(normalise(message)) == normalise(message)


FAILURE = Failure(
    kind=FailureKind.NON_FINITE,
    invariant="finite-logits",
    exception_type="replay.errors.NonFiniteLogits",
    message="logits of request r1 are not finite at position 40",
    request_id="r1",
    step=21,
    position=40,
    non_finite=NonFinitePlace(where="kv-cache", layer=1, tensor="key", block=10, slot=2, position=6, written_by_step=1),
)


def as_recorded() -> tuple[pb.Failure, pb.RuntimeState]:
    state = pb.RuntimeState(requests=[pb.Request(id="r0"), pb.Request(id="r1")])
    failure = pb.Failure(
        kind="non-finite",
        invariant="finite-logits",
        exception_type="replay.errors.NonFiniteLogits",
        message="logits of request r1 are not finite at position 40",
        request=1,
        step=21,
        position=40,
    )
    failure.non_finite.where = "kv-cache"
    failure.non_finite.layer, failure.non_finite.tensor = 1, "key"
    failure.non_finite.block, failure.non_finite.slot = 10, 2
    return failure, state


def test_a_failure_has_one_signature_whether_seen_or_recorded():
    assert Signature.recorded(*as_recorded()) == Signature.of(FAILURE)


def test_what_a_dump_does_not_say_is_not_compared():
    failure, state = as_recorded()
    failure.ClearField("step")
    failure.ClearField("non_finite")
    match = compare(Signature.recorded(failure, state), Signature.of(FAILURE), location=True)
    assert all(match.values())
    assert "location.step" not in match


def test_json_round_trip():
    signature = Signature.of(FAILURE)
    assert Signature.from_json(signature.to_json()) == signature


@pytest.mark.parametrize(
    "document", [{}, {"identity": {}}, {"identity": {"kind": 3}}, {"identity": {"sort": "x"}}, {"identity": []}]
)
def test_json_that_is_no_signature(document):
    with pytest.raises(UsageError):
        Signature.from_json(document)


@given(st.sampled_from(["kind", "invariant", "exception_type", "message"]))
def test_every_identity_field_decides(field):
    one = Signature(Identity(kind="a", invariant="b", exception_type="c", message="d"), Location())
    values = {"kind": "a", "invariant": "b", "exception_type": "c", "message": "d"} | {field: "other"}
    match = compare(one, Signature(Identity(**values), Location()), location=False)
    assert [key for key, holds in match.items() if not holds] == [f"identity.{field}"]


@pytest.mark.parametrize("location", [{"step": "3"}, {"request_id": 3}, {"position": True}, {"layer": [1]}, {"x": 1}])
def test_a_location_of_the_wrong_type_is_no_signature(location):
    with pytest.raises(UsageError, match="not a signature"):
        Signature.from_json({"identity": {"kind": "exception"}, "location": location})


def test_a_slot_that_was_not_its_readers_is_part_of_the_place():
    read = SlotRead(block=3, slot=2, writer="r2", writer_position=7, written_by_step=9)
    failure = Failure(kind=FailureKind.CONTAMINATION, invariant="slot-foreign", request_id="r1", step=10, read=read)
    ours = Signature.of(failure)
    assert (ours.location.block, ours.location.slot) == (3, 2)
    state = pb.RuntimeState(requests=[pb.Request(id="r1")])
    recorded = pb.Failure(kind="contamination", invariant="slot-foreign", request=0, step=10)
    recorded.read.CopyFrom(pb.SlotRead(block=3, slot=2))
    assert Signature.recorded(recorded, state) == ours
    recorded.read.block = 4
    assert not compare(Signature.recorded(recorded, state), ours, location=True)["location.block"]
