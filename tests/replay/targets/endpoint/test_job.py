"""Dumps of which nothing, or not everything, can be sent to an endpoint, and what the report says of that."""

from __future__ import annotations

import pytest

from tests.replay.targets.endpoint.endpoints import FULL, PATH
from tests.reports import findings
from tests.scripted_server import scripted_server
from tests.small_dump import failing_with, small_state


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("contamination", "not-visible-from-outside"), ("process-death", "process-death"), ("novel", "kind-unsupported")],
)
def test_what_cannot_be_seen_from_outside_is_not_even_sent(replay, kind, reason):
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""), failing_with(kind))
    assert (report["verdict"], report["reason_code"], report["mode"]) == ("inconclusive", reason, "none")
    assert server.requests == []


def test_a_record_without_prompts_says_what_would_have_sufficed(replay):
    state = small_state()
    for request in state.requests:
        for field in ("prompt_token_ids", "output_token_ids", "output_digests"):
            request.ClearField(field)
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""), state)
    assert report["reason_code"] == "tokens-absent"
    assert "--record tokens" in findings(report, "tokens-absent")[0]["remedy"]
    assert server.requests == []


def test_what_only_the_recorded_engine_could_be_told_is_said_to_be_left_out(replay):
    state = small_state()
    state.requests[0].flags.early_exit = 0.8
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""), state)
    assert [one["message"] for one in findings(report, "not-sent")] == [
        "early exit, which 1 recorded requests asked for, cannot be sent; answers may differ"
    ]
