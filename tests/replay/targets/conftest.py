"""One thread, so that two processes of a machine do not slow each other, and a tiny model for all replays."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from replay.engine.loaded import LoadedModel
from replay.engine.weights import load_model
from replay.serving import main
from replay.targets import load
from tests.threads import torch_threads
from tests.tiny import make_tiny_model


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.fixture(scope="module", autouse=True)
def each_model_is_loaded_once() -> Iterator[None]:
    """Servers and replays of this process share models, as the dumps of a batch do: probing is most of a small replay.

    A model is another one when a file of its folder or the number of threads is.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (main, load):
            patch.setattr(module, "load_model", _load_shared)
        yield


def _load_shared(folder: Path, **options: Any) -> LoadedModel:
    files = frozenset((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    return _load_once(folder, files, torch.get_num_threads(), tuple(sorted(options.items())))


@cache
def _load_once(folder: Path, files: object, threads: int, options: tuple[tuple[str, Any], ...]) -> LoadedModel:
    return load_model(folder, **dict(options))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("weights") / "tiny")
