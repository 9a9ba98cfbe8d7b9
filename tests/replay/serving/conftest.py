"""The tiny model, and one server on it for everything that must not fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.servers import ServerProcess, running_server
from tests.tiny import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder called "tiny", so that clients ask for the model "tiny"."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def healthy(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with enough of everything."""
    dumps = tmp_path_factory.mktemp("healthy")
    with running_server(tiny_model, dumps, "--record", "full", "--kv-blocks", "300", debug=2) as server:
        yield server


@pytest.fixture
def client(healthy: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=healthy.url + "/v1", api_key="none", max_retries=0) as client:
        yield client
