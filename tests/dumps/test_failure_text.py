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
        (pb.Failure(kind="timeout", request=0), "Request req-a did not finish in time."),
        (pb.Failure(kind="stall", step=3), "A request made no progress any more, in step 3."),
        (pb.Failure(kind="process-death"), "The process died, and its dump was made from its flight recorder."),
        (pb.Failure(kind="\x1bodd"), "A failure '\\\\x1bodd' was recorded."),
    ],
)
def test_words(failure, text):
    assert words(failure) == text
