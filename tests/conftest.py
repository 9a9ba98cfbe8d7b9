"""Settings for all tests: worker processes, Hypothesis profiles, and the real model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from replay.pytest_plugin import ReplayItem

# Set before anything imports torch or transformers: no downloads, and idle OpenMP threads that do not spin.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # the other workers have the other cores
for size in ("COLUMNS", "LINES"):  # of the terminal here; readline leaves them to worker processes, too
    os.environ.pop(size, None)

# Derandomised, so that a red run is red again; no deadline, since these machines are shared.
settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


MOST_WORKERS = 4
"""A worker that has met the real model takes 2.5 GB."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes share the tests: one for each core for the default tests, none where files or marks are named.

    Benchmarks must have the machine to themselves, and for a few tests two more processes cost more than they save.
    """
    default = config.option.markexpr in config.getini("addopts")
    if not default or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return 0
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the real model first: a long one that began last would leave the other workers idle."""
    for item in items:
        if isinstance(item, ReplayItem) and _needs_the_real_model(item):
            item.add_marker("model")
    long = {item.path for item in items if item.get_closest_marker("model")}
    items.sort(key=lambda item: item.path not in long)


def _needs_the_real_model(item: ReplayItem) -> bool:
    computes = item.one.options.get("target", "inference") == "inference"
    return computes and not (item.path.parent / "model").is_dir()


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
