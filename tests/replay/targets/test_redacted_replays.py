"""Failures that scheduler, block pool and block checks show come back from a dump without anybody's token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumps.schema.reader import open_dump
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.redaction import redact_file
from tests.plays import Visit, play


def visit(length: int, seed: int = 0, *, limit: int = 12, **times: Any) -> Visit:
    prompt = tuple((seed * 101 + place * (37 + seed)) % 320 for place in range(length))
    return Visit(prompt=prompt, sampling=SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True), **times)


SHARED = {"prefix_cache": True, "checks": True, "max_num_batched_tokens": 17, "kv_blocks": 16}
SCENES: dict[str, tuple[list[Visit], dict[str, Any]]] = {
    # A prompt whose client leaves before it is computed, and its retry, which is given blocks that nobody wrote.
    "prefix-leak": (
        [visit(36, 3, limit=2), visit(40, arrives=6, leaves=7), visit(40, arrives=8), visit(9, 2, arrives=5)],
        SHARED,
    ),
    "abort-after-finish": ([visit(5, limit=3, leaves=6), visit(9, 1)], {"kv_blocks": 40}),
    "free-block-reuse:running=0,block=1,after_step=1": (
        [visit(12, limit=4), visit(20, 1, arrives=1)],
        {"checks": True, "kv_blocks": 8},
    ),
    "": ([visit(20, limit=40), visit(24, 1, limit=40)], {"kv_blocks": 14, "on_kv_exhausted": OnExhausted.TRUNCATE}),
}


@pytest.mark.parametrize("quirk", SCENES)
def test_a_failure_of_the_schedule_survives_the_mapping_of_ids(tiny: Path, tmp_path: Path, quirk: str):
    people, options = SCENES[quirk]
    dump = play(tiny, tmp_path, people, quirks=(quirk,) if quirk else (), block_size=4, **options).dumps[0]
    check = redact_file(dump, tmp_path / "redacted.pplx", prompt=True).check
    assert check.before is not None
    assert check.before.verdict == "reproduced"
    assert (check.claimed, check.kept) == (True, True)
    with open_dump(dump) as before, open_dump(tmp_path / "redacted.pplx") as after:
        assert len(before.state.steps) == len(after.state.steps)
        pairs = zip(before.state.requests, after.state.requests, strict=True)
        assert all(one.prompt_token_ids != other.prompt_token_ids for one, other in pairs)
        if options.get("prefix_cache"):
            assert any(step.prefix_hits for step in after.state.steps)
