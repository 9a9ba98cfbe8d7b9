"""Searches on a model: what needs its numbers is found there, and recordings replay as they ran."""

from __future__ import annotations

import pytest

from replay.engine.quirks import parse_quirk
from replay.fuzz import engine_job
from replay.fuzz.neighbours import Example, Start, admitted
from replay.scenario.extract import scenario_of
from tests.fixture_folders import FIXTURES
from tests.incidents import MODEL, read
from tests.replay.fuzz.searches import EMIT, searched

TEMP_TINY = FIXTURES / "temp-tiny" / "dump.pplx"


def test_an_example_is_played_recorded_replayed_and_redacted_and_all_agree():
    dump = FIXTURES / "nan-block" / "dump.pplx"
    state, _ = read(dump)
    start = Start(path=dump, state=state, scenario=scenario_of(state))
    scenario = admitted(start.scenario, ())
    example = Example(start=start, scenario=scenario, change="")
    assert example.scenario is not None
    told = engine_job.run(
        {
            "dump": str(dump),
            "target": "inference",
            "model": str(MODEL),
            "device": "cpu",
            "scenario": example.scenario.to_json(),
            "seconds": 60.0,
            "enough": [],
        },
        EMIT,
    )
    assert told["violations"] == []
    assert told["recorded"]
    assert [one["kind"] for one in told["failures"]] == ["non-finite"]


@pytest.mark.long
def test_what_needs_the_models_numbers_is_found(tmp_path, here):
    outcome = searched(
        tmp_path,
        TEMP_TINY,
        target="inference",
        quirks=(parse_quirk("token-ids-unchecked"),),
        examples=80,
        device="cpu",
        shrink_s=20.0,
    )
    assert (outcome.broken, outcome.lost) == ([], 0)
    assert "builtins.IndexError" in {found.identity.exception_type for found in outcome.found}
