"""What a report says around a failure: the context that the program named, and the calls that a deadline ended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.loopback import Script
from tests.small_programs import SmallPrograms

SOURCE = """
import aiohttp
from dumps.record.seams.context import frame, message
from dumps.record.seams.tools import tool

@tool(deadline=0.3)
async def rates(url, of):
    async with aiohttp.ClientSession() as client, client.get(url + "/" + of) as answer:
        return await answer.text()

async def look_up(url):
    with frame("turn", {"number": 3}):
        message("user", "my words", "m1")
        with frame("look-up", {"of": "EUR"}):
            return await rates(url, "EUR")

async def main(url):
    return await look_up(url)

async def patient(url):
    try:
        return await look_up(url)
    except TimeoutError:
        raise LookupError("no rates") from None

async def in_passing(url):
    try:
        await look_up(url)
    except TimeoutError:
        pass
    return {}["rates"]

def wordy(url=""):
    with frame("turn", {"text": "a" * 10_000}):
        return {}["rates"]

def well(url=""):
    return 1
"""
NOTHING = Script([])  # accepts, and never answers


@pytest.fixture(scope="module")
def recorded(programs: SmallPrograms) -> Any:
    name = programs.write(SOURCE)
    dump, url = programs.record_served(name, NOTHING)
    return name, dump, url


def test_a_call_that_a_deadline_ended_is_told_with_its_request_and_the_stack_that_waited(programs, recorded):
    name, dump, url = recorded
    report = programs.replay(dump, f"{name}:main").report
    assert report["verdict"] == "reproduced"
    (overdue,) = report["overdue"]
    assert {key: overdue[key] for key in ("call", "tool", "deadline_s")} == {
        "call": "tool-1",
        "tool": "rates",
        "deadline_s": 0.3,
    }
    assert overdue["waited_s"] == pytest.approx(0.3, abs=0.02)
    assert overdue["requests"] == [f"x1 GET {url}/EUR"]
    assert [one["frame"].removeprefix(f"{name}.py:") for one in overdue["stack"]] == ["rates", "look_up", "main"]


def test_the_context_is_that_of_the_failure_innermost_first_and_without_what_people_said(programs, recorded):
    name, dump, _ = recorded
    report = programs.replay(dump, f"{name}:main").report
    assert [(one["kind"], one["payload"]) for one in report["context"]] == [
        ("look-up", {"of": "EUR"}),
        ("turn", {"number": 3}),
    ]
    assert report["context"][1]["last_message_id"] == "m1"
    assert "my words" not in str(report["context"])


@pytest.mark.parametrize("entry", ["patient", "in_passing"])
def test_a_call_stays_told_where_another_failure_came_of_it(programs, recorded, entry):
    name, dump, _ = recorded
    report = programs.replay(dump, f"{name}:{entry}").report
    assert report["verdict"] == "different-failure"
    assert [one["call"] for one in report["overdue"]] == ["tool-1"]


def test_of_a_program_that_does_not_fail_nothing_is_said(programs, recorded):
    name, dump, _ = recorded
    report = programs.replay(dump, f"{name}:main", set={"tool.tool-1.result": "1"}).report
    assert report["verdict"] == "not-reproduced"
    assert (report["overdue"], report["context"]) == ([], [])


def test_a_large_payload_is_cut(programs):
    name = programs.write(SOURCE)
    report = programs.replay(programs.record(name, "wordy"), f"{name}:wordy").report
    assert report["verdict"] == "reproduced"
    assert len(report["context"][0]["payload"]) < 4100
