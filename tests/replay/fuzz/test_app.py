"""A recorded program with other results of its tools: what it then fails of, each time in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.errors import UsageError
from replay.fuzz.outcome import Outcome
from tests.replay.fuzz.searches import KV_OVERFLOW, searched
from tests.small_programs import SmallPrograms

PROGRAM = """
from dumps.record.seams.tools import tool

@tool{mark}
def weather(place):
    return {{"celsius": [21, 22]}}

def main():
    found = weather("Oslo")
    return sum(found["celsius"]) / len(found["celsius"])

def careful():
    try:
        return main()
    except Exception:
        return None
"""


@pytest.fixture
def programs(tmp_path: Path) -> SmallPrograms:
    return SmallPrograms(tmp_path)


def search(
    programs: SmallPrograms, *, mark: str, entry: str = "main", examples: int = 4, shrink_s: float = 0.1
) -> Outcome:
    name = programs.write(PROGRAM.format(mark=mark))
    dump = programs.record(name, entry)
    return searched(
        programs.folder,
        dump,
        target=f"app={name}:{entry}",
        app_path=(str(programs.folder),),
        answers="recorded",
        examples=examples,
        seed=1,
        shrink_s=shrink_s,
    )


def test_what_a_program_makes_of_other_results_is_found_and_its_dump_reproduces(programs):
    outcome = search(programs, mark='(replay="answer")')
    assert (outcome.broken, outcome.lost, outcome.exit_code) == ([], 0, 1)
    assert "exception" in {found.identity.kind for found in outcome.found}
    for found in outcome.found:
        assert found.identity.frame.endswith(":main")
        assert found.change.startswith("tool-1 ")
        assert found.report is not None
        assert found.report["verdict"] == "reproduced"
        assert (found.dump.exists(), found.shrunk, found.settings) == (True, False, {})


@pytest.mark.long
def test_what_was_found_of_a_program_is_shrunk(programs):
    outcome = search(programs, mark='(replay="answer")', shrink_s=60.0)
    assert outcome.found
    assert all(found.shrunk for found in outcome.found)


@pytest.mark.long
def test_a_tool_that_runs_again_takes_a_setting_which_is_told(programs):
    outcome = search(programs, mark="", examples=3)
    assert (outcome.broken, outcome.lost) == ([], 0)
    found = outcome.found[0]
    assert found.settings
    assert "--set tool." in found.note
    assert found.report is not None
    assert found.report["verdict"] == "reproduced"


def test_a_program_that_takes_any_result_is_left_alone(programs):
    outcome = search(programs, mark='(replay="answer")', entry="careful", examples=2)
    assert (outcome.found, outcome.broken, outcome.lost, outcome.exit_code) == ([], [], 0, 0)


def test_a_dump_of_an_engine_is_refused(tmp_path):
    with pytest.raises(UsageError, match="of no program"):
        searched(tmp_path, KV_OVERFLOW, target="app=a:b")
