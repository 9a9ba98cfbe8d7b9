"""No vector function of a model is called for the first time by several threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from replay.engine.vector_math import FUNCTIONS
from replay.engine.weights import load_model
from tests.tiny_models import make_model

NAMES = {function.__name__ for function in FUNCTIONS}


class FirstCalls(TorchDispatchMode):  # type: ignore[misc]
    """Elements of the first call of each vector function, in place or not, by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        if name in NAMES:
            self.elements.setdefault(name, args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernels", ["exact", "stock"])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2"])
def test_the_first_call_of_each_is_of_one_element(tmp_path: Path, kind: str, kernels: Any) -> None:
    folder = make_model(tmp_path / "model", kind)
    with FirstCalls() as calls:
        load_model(folder, dtype="bfloat16", kernels=kernels)
    assert calls.elements == dict.fromkeys(NAMES, 1)
