"""One thread, a tiny model that is loaded once, and dumps of it that fail for one reason or for two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from tests.plays import Visit, play
from tests.replay.targets.conftest import each_model_is_loaded_once, one_thread, tiny

__all__ = ["each_model_is_loaded_once", "one_thread", "tiny"]

OPTIONS: dict[str, Any] = {
    "block_size": 4,
    "kv_blocks": 40,
    "max_num_batched_tokens": 17,
    "max_num_seqs": 4,
    "prefix_cache": True,
}


def visit(length: int, seed: int, *, limit: int = 12, arrives: int = 0, leaves: int | None = None) -> Visit:
    prompt = tuple((seed * 101 + place * (37 + seed)) % 320 for place in range(length))
    sampling = SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True, seed=4)
    return Visit(prompt=prompt, sampling=sampling, arrives=arrives, leaves=leaves)


# Somebody's text, then a long prompt whose client leaves before most of it is computed, and its retry.
LEAK = [
    visit(36, 3, limit=2),
    visit(40, 0, arrives=6, leaves=7),
    visit(40, 0, limit=12, arrives=8),
    visit(9, 2, arrives=5),
]


@pytest.fixture(scope="session")
def leak(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix cache that knows blocks too early, and checks that see it."""
    folder = tmp_path_factory.mktemp("leak")
    return play(tiny, folder, LEAK, quirks=("prefix-leak",), checks=True, **OPTIONS).dumps[0]


@pytest.fixture(scope="session")
def two_faults(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool that is too small, and a block that is freed under its request where the pool would have lasted."""
    options: dict[str, Any] = {"kv_blocks": 4, "on_kv_exhausted": OnExhausted.TRUNCATE, "prefix_cache": False}
    folder, quirks = tmp_path_factory.mktemp("two"), ("free-block-reuse:running=0,block=1,after_step=12",)
    return play(tiny, folder, [visit(8, 1, limit=20)], quirks=quirks, **{**OPTIONS, **options}).dumps[0]
