"""A search that does not know which defects are on finds what they cause, each failure made small."""

from __future__ import annotations

import pytest

from replay.engine.quirks import parse_quirk
from tests.incidents import read
from tests.job_replays import replayed
from tests.replay.fuzz.searches import KV_OVERFLOW, searched

ON = ("prefix-leak", "abort-after-finish", "prompt-unchecked")
OTHERS = ("free-block-reuse:running=0,block=0,after_step=3", "abort-after-finish", "prefix-leak")


@pytest.mark.parametrize(
    ("on", "seed"),
    [(ON, 1), pytest.param(ON, 2, marks=pytest.mark.long), pytest.param(OTHERS, 1, marks=pytest.mark.long)],
)
def test_from_kv_overflow_with_three_quirks_on_two_of_them_are_found_and_shrunk(tmp_path, here, on, seed):
    outcome = searched(tmp_path, KV_OVERFLOW, quirks=tuple(map(parse_quirk, on)), examples=200, seed=seed)
    assert (outcome.broken, outcome.lost, outcome.complete, outcome.exit_code) == ([], 0, True, 1)
    causes = set()
    for found in outcome.found:
        assert found.shrunk
        assert found.identity not in outcome.known
        state, _ = read(found.dump)
        assert len(state.requests) <= 5
        assert sum(one.num_prompt_tokens + one.num_output_tokens for one in state.requests) <= 100
        assert replayed(found.dump, None, target="schedule")["verdict"] == "reproduced"
        for quirk in state.quirks:
            without = replayed(found.dump, None, target="schedule", set={f"quirk.{quirk.name}": "off"})
            if without["verdict"] != "reproduced":
                causes.add(quirk.name)
    assert len(causes) >= 2
    assert causes <= {text.partition(":")[0] for text in on}


def test_without_quirks_nothing_new_is_found(tmp_path, here):
    outcome = searched(tmp_path, KV_OVERFLOW, examples=120)
    assert (outcome.found, outcome.broken, outcome.lost, outcome.exit_code) == ([], [], 0, 0)
    [identity] = outcome.known
    assert identity.kind == "silent-truncation"
    assert not (tmp_path / "found").exists()
