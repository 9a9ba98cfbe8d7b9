"""A tiny model on one thread, loaded once for the servers and the player of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.threads import torch_threads
from tests.tiny import make_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("weights") / "tiny")


@pytest.fixture(scope="module")
def player(tiny: Path) -> Iterator[object]:
    """A `ModelPlayer`. While it is there, servers and replays of this process compute with its model."""
    from replay.scenario.model_player import ModelPlayer
    from replay.serving import main
    from replay.targets import load

    with torch_threads(1), pytest.MonkeyPatch.context() as patch:
        player = ModelPlayer(load.load_weights(tiny, dtype="float32", kernels="exact", device="cpu", threads=1))
        for module in (main, load):
            patch.setattr(module, "load_model", lambda folder, **options: player.model)
        yield player
