"""One thread, so that two processes of a machine do not slow each other. Tests of more threads set them themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.threads import torch_threads


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield
