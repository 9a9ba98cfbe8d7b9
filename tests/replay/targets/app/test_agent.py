"""An agent that failed in four ways against real services, replayed without them."""

from __future__ import annotations

import json
import time

import pytest

from dumps.schema.reader import open_dump
from dumps.validate import validate
from tests.agent.recording_session import FAILURES

EXPECTED = {
    "hang": ("TimeoutError", "agent.py:Agent.answer"),
    "malformed": ("json.decoder.JSONDecodeError", "agent.py:parse_weather"),
    "reset": ("aiohttp.client_exceptions.ClientPayloadError", "agent.py:rates"),
    "clock-jump": ("agent.TokenExpired", "agent.py:Agent.check"),
}
STEPS = {"hang": 6, "malformed": 5, "reset": 6, "clock-jump": 4}

MENDED = {"hang": "variants:patient", "malformed": "variants:patient", "reset": "variants:patient"}
BEYOND_MODEL_S = 15.0
"""A bound for a machine that does other things, too; alone it is 0.5 to 0.7 s."""


@pytest.mark.parametrize("failure", FAILURES)
def test_the_same_exception_comes_back_in_the_same_frame_and_step_twice(replay, failure):
    kind, frame = EXPECTED[failure]
    result = replay(failure, repeat=2)
    assert result.report is not None, result.error
    report = result.report
    assert (report["verdict"], report["repeat"]) == ("reproduced", {"n": 2, "reproduced": 2})
    identity, location = report["signature"]["identity"], report["signature"]["location"]
    assert (identity["exception_type"], identity["frame"], location["step"]) == (kind, frame, STEPS[failure])
    assert all(report["match"].values())
    assert report["world"]["model_answers"] == 1
    assert report["world"]["exchanges"]["left_over"] == report["world"]["unrecorded"] == 0
    assert report["findings"] == []
    assert report["timings"]["total_s"] - report["timings"]["model_s"] < BEYOND_MODEL_S


def test_a_deadline_of_30_s_costs_no_30_s(replay):
    began = time.monotonic()
    report = replay("hang").report
    assert time.monotonic() - began < 20
    assert report["timings"]["virtual_s"] > 30


@pytest.mark.parametrize("failure", MENDED)
def test_with_its_bug_mended_the_program_does_not_fail(replay, failure):
    report = replay(failure, MENDED[failure]).report
    assert (report["verdict"], report["world"]["ended"]) == ("not-reproduced", "returned")


def test_a_program_that_lives_on_past_the_record_does_not_fail_either(replay):
    report = replay("clock-jump", "variants:steady").report
    assert report["verdict"] == "not-reproduced"
    beyond = report["findings"][0]
    assert beyond["code"] == "beyond-the-record"
    assert "/rates?of=EUR" in beyond["message"]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_call_that_nobody_recorded_is_a_divergence_that_names_it(replay, failure):
    report = replay(failure, "variants:curious").report
    assert report["verdict"] == "diverged"
    assert report["divergence"]["step"] == 2
    assert "/news?topic=rates" in report["divergence"]["replayed"]
    assert "variants.py" in report["divergence"]["replayed"]


def test_a_tool_that_is_given_an_answer_lives(replay):
    """Would it have lived, had the tool answered?"""
    rates = json.dumps([{"to": "USD", "rate": 1.1}])
    report = replay("hang", set={"tool.tool-2.result": rates}).report
    assert report["verdict"] == "not-reproduced"
    assert report["settings"] == {"tool.tool-2.result": rates}


def test_a_handler_that_spins_for_ever_ends_at_the_timeout_and_the_next_replay_works(replay):
    began = time.monotonic()
    result = replay("malformed", "variants:spinning", timeout_s=2.0)
    assert time.monotonic() - began < 15
    assert result.error is not None
    assert result.error.kind == "BudgetSpent"
    assert replay("malformed", answers="recorded").report["verdict"] == "reproduced"


def test_the_recorded_stream_of_the_model_serves_where_nothing_is_computed(replay):
    report = replay("reset", answers="recorded").report
    assert (report["verdict"], report["world"]["model_answers"]) == ("reproduced", 0)
    assert [finding["code"] for finding in report["findings"]] == ["recorded-answers"]


def test_another_model_says_something_else_and_that_is_told(replay, tmp_path):
    """Agreement of the model's answers is earned: other weights are refused by their fingerprint."""
    report = replay("malformed", model=str(tmp_path)).report
    assert report["verdict"] == "reproduced"
    assert "recorded one, not computed" in report["findings"][0]["message"]


@pytest.mark.parametrize("failure", FAILURES)
def test_the_dump_contradicts_nothing_and_holds_no_secret(recorded, failure):
    path = recorded[failure].dump
    with open_dump(path) as dump:
        assert validate(dump.state) == []
        assert dump.state.program.entry == "agent:answer"
    for secret in (b"sk-not-a-key", b"a-token-of-the-day"):
        assert secret not in path.read_bytes().replace(b'"access": "a-token-of-the-day"', b"")


def test_the_snapshot_says_what_the_agent_was_in_the_middle_of(recorded):
    snapshot = json.loads(recorded["hang"].snapshot.read_text())
    assert snapshot["stack_depth"] >= 1
    assert snapshot["stack"][0]["kind"] == "agent"
    assert snapshot["last_message_id"] == "m2"
    assert [message["role"] for message in snapshot["messages"]] == ["user", "assistant"]
    assert snapshot["tools"] == {"finished": 1, "failed": 1}
