"""What the recorder writes, what it refuses to write, and that it never ends what it records."""

from __future__ import annotations

import os
import resource
import signal
import stat
import struct
import subprocess
import sys

import pytest

from dumps.record.recorder import FlightRecorder, KeyframeRecord, RecordLevel, StepEnd, StepStart
from dumps.record.recover import read_ring, state_from_ring
from dumps.schema import state_pb2 as pb
from replay.engine.schedule import OnExhausted
from tests.flight import Flight, identity, make_config, make_recorder

# Ids whose four bytes stand out, and text that stands out.
PROMPT = [0x5AA5C301 + number for number in range(6)]
DRAWN = [0x5AA5C401 + number for number in range(4)]
BIASED, STOP_ID = 0x5AA5C501, 0x5AA5C601
TEXT, STOP = "a secret zebra", "stop at the okapi"


def record_one(path, level):
    config = make_config()
    recorder = make_recorder(path, config, level=level)
    sampling = {
        "temperature": 0.25,
        "top_p": 0.75,
        "seed": 2**64 - 1,
        "stop": [STOP],
        "stop_token_ids": [STOP_ID],
        "logit_bias": [[BIASED, -3.5]],
        "max_tokens": 9,
    }
    header = {
        "id": "req-1",
        "arrival_ns": 77,
        "endpoint": "/v1/completions",
        "stream": True,
        "sampling": sampling,
        "sample_index": 2,
        "prompt_text": TEXT,
    }
    serial = recorder.add_request(header, PROMPT)
    recorder.begin_step(StepStart(0, 5, [serial], [0], [6], [(0, 0), (0, 1)], arrived=[serial], admitted=[serial]))
    recorder.end_step(StepEnd(0, [DRAWN[0]]))
    for index in range(1, 4):
        recorder.begin_step(StepStart(index, 5, [serial], [5 + index], [1]))
        recorder.end_step(StepEnd(index, [DRAWN[index]]))
    recorder.keyframe(KeyframeRecord(4, list(range(2, 12)), [(serial, 9, 4, [0, 1])], []))
    recorder.flush()
    return state_from_ring(read_ring(path), reason="demand")


def grades(state: pb.RuntimeState) -> dict[str, int]:
    return {entry.path: entry.grade for entry in state.ledger}


def test_level_shape_leaves_no_token_and_no_text_in_the_file(tmp_path):
    state = record_one(tmp_path / "a.ring", RecordLevel.SHAPE)

    data = (tmp_path / "a.ring").read_bytes()
    for token in [*PROMPT, *DRAWN, BIASED, STOP_ID]:
        for width in ("<I", ">I"):
            assert struct.pack(width, token) not in data
        assert str(token).encode() not in data
    for text in (TEXT, STOP):
        assert text.encode() not in data
    request = state.requests[0]
    assert (request.num_prompt_tokens, request.num_output_tokens) == (6, 4)
    assert (request.sampling.seed, request.sampling.temperature) == (2**64 - 1, 0.25)
    assert [chunk.sampled for step in state.steps for chunk in step.scheduled] == [True] * 4
    assert not any(chunk.HasField("sampled_token") for step in state.steps for chunk in step.scheduled)
    for path in ("prompt_token_ids", "output_token_ids", "sampling.stop", "sampling.logit_bias"):
        assert grades(state)[f"requests[].{path}"] == pb.ABSENT


def test_level_tokens_keeps_ids_and_no_prompt_text(tmp_path):
    state = record_one(tmp_path / "a.ring", RecordLevel.TOKENS)

    assert TEXT.encode() not in (tmp_path / "a.ring").read_bytes()
    request = state.requests[0]
    assert request.prompt_token_ids == struct.pack("<6i", *PROMPT)
    assert request.output_token_ids == struct.pack("<4i", *DRAWN)
    assert list(request.sampling.stop) == [STOP]
    assert [(b.token_id, b.bias) for b in request.sampling.logit_bias] == [(BIASED, -3.5)]
    assert not request.HasField("prompt_text")
    assert (request.id, request.arrival_ns, request.stream, request.sample_index) == ("req-1", 77, True, 2)


def test_level_full_keeps_the_text_too(tmp_path):
    state = record_one(tmp_path / "a.ring", RecordLevel.FULL)

    assert state.requests[0].prompt_text == TEXT
    assert "requests[].prompt_text" not in grades(state)


def test_a_header_too_long_for_its_slot_loses_its_lists_and_keeps_its_name(tmp_path):
    recorder = make_recorder(tmp_path / "a.ring", make_config(), level=RecordLevel.FULL)
    bias = [[token, 1.0] for token in range(5000)]
    recorder.add_request(
        {"id": "long", "sampling": {"logit_bias": bias, "seed": 3, "top_p": 1.0}, "prompt_text": "é" * 9000}, [1]
    )
    state = state_from_ring(read_ring(tmp_path / "a.ring"), reason="demand")

    request = state.requests[0]
    assert (request.id, request.sampling.seed, len(request.sampling.logit_bias)) == ("long", 3, 0)
    assert not request.HasField("prompt_text")
    assert grades(state)["requests[].sampling.logit_bias"] == pb.ABSENT


def test_the_file_is_for_its_owner_only_and_never_replaces_another(tmp_path):
    make_recorder(tmp_path / "a.ring", make_config())
    assert stat.S_IMODE((tmp_path / "a.ring").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        make_recorder(tmp_path / "a.ring", make_config())
    (tmp_path / "link.ring").symlink_to(tmp_path / "elsewhere.ring")
    with pytest.raises(FileExistsError):
        make_recorder(tmp_path / "link.ring", make_config())
    assert not (tmp_path / "elsewhere.ring").exists()


@pytest.mark.parametrize(
    "sizes",
    [{"slots": 0}, {"slots": 1 << 20}, {"ring_bytes": 8}, {"slot_tokens": 1 << 30}, {"ring_bytes": 1 << 40}],
)
def test_sizes_outside_their_limits_are_refused_and_leave_no_file(tmp_path, sizes):
    with pytest.raises(ValueError, match="must be between"):
        make_recorder(tmp_path / "a.ring", make_config(), **sizes)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_found_out_at_the_start(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match=r"too large|No space"):
            make_recorder(tmp_path / "a.ring", make_config())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert list(tmp_path.iterdir()) == []


def test_a_record_too_large_for_the_ring_is_left_out_and_history_begins_after_it(tmp_path):
    config = make_config(num_blocks=200, max_num_seqs=64, max_num_batched_tokens=64)
    flight = Flight(make_recorder(tmp_path / "a.ring", config, ring_bytes=4096, slots=64), config)
    flight.fly(3)
    for _ in range(40):
        flight.add(2, max_tokens=1)
    for _ in range(30):
        if flight.plan() is not None:
            flight.commit()
    flight.fly(12)

    state = state_from_ring(read_ring(tmp_path / "a.ring"), reason="demand")

    flight.check(state)


def test_one_failure_of_many_is_never_lost_to_the_ring(tmp_path):
    config = make_config()
    flight = Flight(make_recorder(tmp_path / "a.ring", config, ring_bytes=4096), config)
    for number in range(20):
        flight.recorder.failure({"kind": "exception", "message": f"number {number}", "step": 0, "position": None})
    flight.fly(100)

    state = state_from_ring(read_ring(tmp_path / "a.ring"), reason="exception")

    assert [failure.message for failure in state.failures] == [f"number {number}" for number in range(12, 20)]
    assert state.failures[-1].time_ns > 0
    assert not state.failures[-1].HasField("position")


def test_a_long_message_is_cut_and_half_a_surrogate_pair_is_escaped(tmp_path):
    recorder = make_recorder(tmp_path / "a.ring", make_config())
    recorder.add_request({"id": "half \ud800", "sampling": {"stop": ["\udc00"], "top_p": 1.0}}, [1])
    recorder.failure({"kind": "exception", "exception_type": "a.B", "message": "é\x1b\ud800" * 9000})

    state = state_from_ring(read_ring(tmp_path / "a.ring"), reason="exception")

    assert 100 < len(state.failures[0].message) <= 6000
    assert state.failures[0].exception_type == "a.B"
    assert state.requests[0].id == "half \\ud800"
    assert list(state.requests[0].sampling.stop) == ["\\udc00"]


def test_steps_that_fit_nothing_do_not_raise(tmp_path):
    """A serial that was never added, an end without a beginning, a second end."""
    recorder = make_recorder(tmp_path / "a.ring", make_config())
    recorder.end_step(StepEnd(0, [5]))
    recorder.begin_step(StepStart(0, 1, [99], [0], [1], [(0, 0)], aborted=[(98, "abort", "client-gone")]))
    recorder.end_step(StepEnd(0, [5], finished=[(99, "stop", "eos")]))
    recorder.end_step(StepEnd(0, [5]))


def test_a_queue_too_long_for_a_keyframe_is_cut(tmp_path):
    config = make_config()
    recorder = make_recorder(tmp_path / "a.ring", config)
    recorder.keyframe(KeyframeRecord(7, list(range(12)), [], list(range(1, 50_000))))

    image = read_ring(tmp_path / "a.ring")

    assert image.counters["queues_cut"] == 1
    assert 1000 < len(image.keyframes[0][0].waiting) < 50_000


def test_keyframes_come_due_often_enough_for_the_ring(tmp_path):
    config = make_config(on_kv_exhausted=OnExhausted.TRUNCATE)
    flight = Flight(make_recorder(tmp_path / "a.ring", config, ring_bytes=8192), config)
    for _ in range(300):
        flight.fly(1)
        image = read_ring(tmp_path / "a.ring")
        newest = image.runs[0] if image.runs else []
        assert (
            not newest
            or newest[0].sequence == 0
            or any(newest[0].sequence <= sequence for _, sequence in image.keyframes)
        )


def test_a_clean_end_is_said_so(tmp_path):
    recorder = make_recorder(tmp_path / "a.ring", make_config())
    assert not read_ring(tmp_path / "a.ring").closed
    recorder.close(clean=True)
    recorder.close(clean=True)
    image = read_ring(tmp_path / "a.ring")
    assert image.closed
    assert not image.alive
    assert state_from_ring(image).manifest.reason == "demand"


def test_identity_reaches_the_dump(tmp_path):
    config = make_config()
    facts = identity(config) | {"quirks": ["freed-blocks-stay", {"name": "abort-twice", "detail": "n=2"}]}
    FlightRecorder(
        os.fspath(tmp_path / "a.ring"),
        facts,
        level=RecordLevel.TOKENS,
        slots=2,
        slot_tokens=8,
        ring_bytes=4096,
        slot_blocks=10,
    )
    state = state_from_ring(read_ring(tmp_path / "a.ring"), reason="demand")

    assert state.active_model == "tiny"
    assert [(pair.key, pair.value) for pair in state.manifest.versions] == [("python", "3.11")]
    assert list(state.manifest.launch_arguments) == ["--port", "1"]
    assert (state.manifest.pid, state.manifest.record_level) == (os.getpid(), "tokens")
    assert (state.engine.num_blocks, state.engine.on_kv_exhausted) == (12, "preempt")
    assert (state.kv.dtype, state.kv.max_bytes) == ("float32", 12 * 2 * 4 * 4 * 4)
    assert [(quirk.name, quirk.detail) for quirk in state.quirks] == [("freed-blocks-stay", ""), ("abort-twice", "n=2")]


def test_the_recorder_needs_the_standard_library_only():
    code = (
        "import sys, dumps.record.recorder\n"
        "print([m for m in ('google', 'numpy', 'zstandard', 'replay') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_texts_of_any_length_stay_in_their_failure_slot(tmp_path):
    config = make_config()
    recorder = make_recorder(tmp_path / "a.ring", config)
    for number in range(7):
        recorder.failure({"kind": "exception", "message": f"m{number}"})
    recorder.failure({"kind": "exception", "message": "é" * 9000, "request_id": "é" * 9000, "invariant": "é" * 200_000})
    recorder.close(clean=False)
    image = read_ring(tmp_path / "a.ring")
    assert [failure["number"] for failure in image.failures] == list(range(8))
    assert image.damaged_failures == 0
