"""What is said of a replayed program's world, from reports made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from replay.cli.world_view import lived_on, world_rows, world_time


def report(reason: str = "", **world: Any) -> dict[str, Any]:
    facts = {
        "exchanges": {"recorded": 4, "asked": 4},
        "tool_calls": {"recorded": 0, "begun": 0},
        "model_answers": 0,
        "ended": "stopped",
        "unrecorded": 0,
        "unrecorded_requests": 0,
    }
    return {
        "world": facts | world,
        "target": "app=agent:main",
        "failure": None,
        "mode": "strict",
        "reason_code": reason,
        "findings": [{"code": "beyond-the-record", "message": ""}],
    }


@pytest.mark.parametrize(
    ("unrecorded", "requests", "said"),
    [
        (0, 0, "4 of 4 recorded requests asked; 0 of"),
        (1, 1, "4 of 4 recorded requests asked, 1 asked that nobody recorded; 0 of"),
        (1, 0, "4 of 4 recorded requests asked; 1 file call that nobody recorded; 0 of"),
        (4, 2, "4 of 4 recorded requests asked, 2 asked that nobody recorded; 2 file calls that nobody recorded; 0 of"),
    ],
)
def test_a_file_that_nobody_recorded_is_no_request(unrecorded, requests, said):
    rows = dict(world_rows(report(unrecorded=unrecorded, unrecorded_requests=requests)))
    assert rows["world"].startswith(said)


def test_one_that_cannot_be_told_to_have_passed_its_failure_has_not_lived_on():
    assert lived_on(report())
    assert not lived_on(report("beyond-the-record"))


def test_what_it_waited_for_and_was_in_the_middle_of_is_told_with_its_failure():
    overdue = {
        "call": "tool-2",
        "tool": "rates",
        "deadline_s": 30.0,
        "waited_s": 30.0,
        "requests": ["x4 GET http://rates/"],
        "stack": [{"frame": "agent.py:rates", "line": 74}, {"frame": "agent.py:answer", "line": 98}],
    }
    stack: tuple[tuple[str, dict[str, int]], ...] = (("turn", {"n": 3}), ("agent", {}), ("main", {}))
    frames = [{"kind": kind, "payload": payload} for kind, payload in stack]
    failed = report() | {
        "failure": {"message": "", "frame": "agent.py:answer"},
        "overdue": [overdue],
        "context": frames,
    }
    rows = list(world_rows(failed))
    assert (
        "waited for",
        "tool call tool-2 (rates), for 30 s, deadline 30 s; no answer to x4 GET http://rates/; "
        "in agent.py:rates line 74 < agent.py:answer line 98",
    ) in rows
    assert [value for name, value in rows if name == "in the middle of"] == ['turn {"n": 3}', "agent"]


def test_time_spent_in_vain_on_the_model_is_not_called_its_own():
    timings = {"load_s": 0.5, "step_s": 4.0, "model_s": 3.6, "total_s": 5.0}
    assert "of it model 3.60 s" in world_time(timings, answers=1)
    assert "of it looking for the model 3.60 s" in world_time(timings, answers=0)
