"""The devices that a test of the engine runs on: the CPU always, CUDA with ``-m gpu``.

    python -m pytest -m gpu

runs every test that needs a GPU, on a machine with one: a CUDA build of torch, the package with its extras `engine` and
`test`, and the real model (or ``-m "gpu and not model"`` without it). They are meant to take less than six minutes on
one H200, loading included. Without a usable GPU they fail and say why. They have not been run on one yet.
"""

from __future__ import annotations

from typing import Any

import pytest

DEVICES: tuple[Any, ...] = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
