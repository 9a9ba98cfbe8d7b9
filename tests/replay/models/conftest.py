"""Tiny weights, written by the safetensors library itself, and a cache of this test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

Tensors = Mapping[str, NDArray[np.generic]]


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our cache and the Hugging Face cache point into the test's folder."""
    monkeypatch.setenv("PPLX_CACHE", str(tmp_path / "pplx-cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "pplx-cache"


@pytest.fixture
def tensors() -> dict[str, NDArray[np.generic]]:
    return {
        "model.embed.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "model.norm.weight": np.ones(4, dtype=np.float16),
        "empty": np.zeros((0, 4), dtype=np.int64),
    }


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """make_folder(name, {file: tensors}) writes a model folder below tmp_path, tokenizer included."""

    def make(name: str, files: Mapping[str, Tensors]) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        (folder / "tokenizer.json").write_text('{"version": "1.0"}')
        for file, content in files.items():
            save_file(dict(content), folder / file)
        return folder

    return make
