"""Failures in words."""

from __future__ import annotations

import pytest

from dumps.failure_text import describe_failure
from dumps.schema import state_pb2 as pb
from tests.small_dump import small_state


def words(failure: pb.Failure) -> str:
    return describe_failure(small_state(), failure)


def test_a_truncation_names_request_place_and_bytes():
    assert words(small_state().failures[0]) == (
        "Request req-b was cut short without being told so: the KV cache had no block left when it had 3 tokens "
        '(96 of 96 bytes in use), in step 2. Message: "no block left"'
    )


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (
            pb.Failure(
                kind="non-finite",
                request=0,
                step=4,
                non_finite=pb.NonFinite(
                    where="kv-cache", layer=3, tensor="value", block=7, slot=2, position=34, written_by_step=2
                ),
            ),
            "The KV cache of request req-a held NaN or infinity, in step 4: layer 3, block 7, slot 2, value tensor, "
            "token position 34, last written by step 2.",
        ),
        (
            pb.Failure(kind="non-finite", non_finite=pb.NonFinite(where="logits")),
            "The logits held NaN or infinity, and the KV cache does not explain it.",
        ),
        (
            pb.Failure(kind="exception", exception_type="builtins.OSError", message="disk \x1b[2J full"),
            'builtins.OSError was raised. Message: "disk \\x1b[2J full"',
        ),
        (
            pb.Failure(kind="silent-truncation", invariant="max-model-len", request=9, seq_len_exceeded_at=16),
            "Request 9 (unknown) was cut short without being told so: it reached the longest sequence the engine takes "
            "when it had 16 tokens.",
        ),
        (
            pb.Failure(
                kind="contamination",
                invariant="slot-foreign",
                request=0,
                step=9,
                position=4,
                read=pb.SlotRead(block=7, slot=0, writer="req-b\x1b", writer_position=20, written_by_step=8),
            ),
            "Request req-a met another request's token in a KV slot, in step 9, for token position 4: block 7, slot 0, "
            "last written by request req-b\\x1b for its position 20 in step 8.",
        ),
        (
            pb.Failure(kind="contamination", invariant="slot-unwritten", request=0, read=pb.SlotRead(block=1, slot=2)),
            "Request req-a met a KV slot that nobody had written since its block was handed out: block 1, slot 2, last "
            "written by nobody that is known.",
        ),
        (
            pb.Failure(kind="contamination", invariant="odd", step=1),
            "A request met a KV slot that is not its own (odd), in step 1.",
        ),
        (
            pb.Failure(
                kind="exception",
                exception_type="builtins.RuntimeError",
                request=0,
                non_finite=pb.NonFinite(where="temperature"),
            ),
            "builtins.RuntimeError was raised while request req-a was served; the sampler's stage temperature was the "
            "first that was not finite.",
        ),
        (pb.Failure(kind="timeout", request=0), "Request req-a did not finish in time."),
        (pb.Failure(kind="stall", step=3), "A request made no progress any more, in step 3."),
        (pb.Failure(kind="process-death"), "The process died, and its dump was made from its flight recorder."),
        (pb.Failure(kind="\x1bodd"), "A failure '\\\\x1bodd' was recorded."),
    ],
)
def test_words(failure, text):
    assert words(failure) == text
