"""A program's dump, redacted: it still replays without --prompt, and with it nothing of its world is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumps.schema.reader import open_dump
from dumps.validate import validate
from replay.isolate.limits import Limits
from replay.isolate.program import run_program
from replay.redaction import redact_file
from tests.agent.recording_session import HERE, Recorded


@pytest.mark.parametrize("failure", ["malformed", "clock-jump"])
def test_a_program_fails_alike_from_its_redacted_dump(
    recorded: dict[str, Recorded], tiny: Path, tmp_path: Path, failure: str
):
    outcome = redact_file(recorded[failure].dump, tmp_path / "redacted.pplx")
    assert outcome.check.kept is None
    assert "exchanges[].request_body" in {one.path for one in outcome.redacted.kept}
    job = {"dump": str(tmp_path / "redacted.pplx"), "target": "app=agent:answer", "app_path": [str(HERE)]}
    report = run_program(job | {"model": str(tiny)}, limits=Limits()).report
    assert report is not None
    assert report["verdict"] == "reproduced"
    assert all(report["match"].values())
    assert report["world"]["exchanges"]["left_over"] == report["world"]["unrecorded"] == 0


def test_with_prompt_a_program_s_dump_holds_the_shape_of_its_world_only(recorded: dict[str, Recorded], tmp_path: Path):
    outcome = redact_file(recorded["malformed"].dump, tmp_path / "redacted.pplx", prompt=True)
    assert not outcome.check.claimed
    with open_dump(recorded["malformed"].dump) as before, open_dump(tmp_path / "redacted.pplx") as after:
        assert not validate(after.state)
        assert len(after.state.exchanges) == len(before.state.exchanges)
        assert [[chunk.size for chunk in one.chunks] for one in after.state.exchanges] == [
            [chunk.size for chunk in one.chunks] for one in before.state.exchanges
        ]
        data = (tmp_path / "redacted.pplx").read_bytes()
        bodies = [one.request_body for one in before.state.exchanges if one.request_body]
        assert bodies
        assert not any(body in data for body in bodies)
        assert all(len(chunk.data) < 4 or chunk.data not in data
                   for one in before.state.exchanges for chunk in one.chunks)  # fmt: skip
