"""What programs share with other processes is refused, and noted."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory
from typing import Any

import pytest

from replay.runtime.errors import RuntimeReplayError
from replay.runtime.other_processes import SharedWithProcesses, install


@pytest.fixture
def noted() -> Iterator[list[RuntimeReplayError]]:
    """In place, with what was noted."""
    errors: list[RuntimeReplayError] = []

    def refuse(error: RuntimeReplayError) -> RuntimeReplayError:
        errors.append(error)
        return error

    undo = install(refuse)
    yield errors
    undo()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (multiprocessing.Lock, "a semaphore"),
        (multiprocessing.Queue, "a semaphore"),
        (lambda: multiprocessing.Pool(1), "a semaphore"),
        (lambda: ProcessPoolExecutor(1).submit(abs, 1), "a semaphore"),
        (lambda: shared_memory.SharedMemory(create=True, size=10), "memory that processes share"),
        (lambda: os.mkfifo("/nowhere/pipe"), "os.mkfifo"),
        (lambda: os.mknod("/nowhere/node"), "os.mknod"),
    ],
)
def test_each_is_refused_by_name(noted: list[RuntimeReplayError], make: Callable[[], object], says: str):
    with pytest.raises(SharedWithProcesses, match=says):
        make()
    assert [type(error) for error in noted] == [SharedWithProcesses]


def test_a_library_that_does_without_is_not_cut(noted: list[RuntimeReplayError]):
    namespace = {"__name__": "tqdm.std", "Lock": multiprocessing.Lock}
    exec("try:\n    Lock()\nexcept OSError as error:\n    seen = type(error).__name__", namespace)
    assert namespace["seen"] == "SharedWithProcesses"
    assert noted == []


def test_everything_is_back_afterwards():
    _multiprocessing: Any = importlib.import_module("_multiprocessing")
    before = _multiprocessing.SemLock, os.mkfifo
    undo = install(lambda error: error)
    assert _multiprocessing.SemLock.SEM_VALUE_MAX == before[0].SEM_VALUE_MAX
    undo()
    assert (_multiprocessing.SemLock, os.mkfifo) == before
