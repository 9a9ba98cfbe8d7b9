"""The demo is a promise in the README: it must show what it says, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dumps.schema.reader import open_dump


@pytest.mark.model
def test_demo(smollm2, tmp_path):
    command = [sys.executable, "-m", "replay.cli", "replay", "demo", "--keep", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    as_recorded, with_more = document["reports"]
    assert (as_recorded["verdict"], with_more["verdict"]) == ("reproduced", "not-reproduced")
    assert document["cut_answer"]
    with open_dump(document["dump"]) as dump:
        state = dump.state
    assert as_recorded["compared"]["tokens"] == sum(request.num_output_tokens for request in state.requests)
    assert as_recorded["compared"]["fast_forwarded_tokens"] > 0
