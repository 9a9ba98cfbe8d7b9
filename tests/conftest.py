"""Settings for all tests: Hypothesis profiles, and the real model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Set before anything imports torch or transformers: no downloads, and idle OpenMP threads that do not spin.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Derandomised, so that a red run is red again; no deadline, since these machines are shared.
settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct as bfloat16 safetensors.

    Missing weights fail: a skip would hide the real tests.
    """
    if named := os.environ.get("PPLX_TEST_SMOLLM2"):
        return Path(named)
    from replay.errors import ModelUnavailable
    from replay.models.locate import locate

    try:
        return locate(name="smollm2-135m")
    except ModelUnavailable as error:
        pytest.fail(f"{error}\nThese tests need the real model: {error.remedy}")


@pytest.fixture(scope="session")
def base_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The python of a new venv that holds the base install and nothing else: no torch."""
    folder = tmp_path_factory.mktemp("base") / "venv"
    root = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(root)]
    subprocess.run(install, check=True, capture_output=True)
    return python
