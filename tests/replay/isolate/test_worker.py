"""The worker by itself, spoken to over its pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from replay.isolate.environment import child_environment
from replay.isolate.protocol import FrameDecoder, encode
from replay.isolate.worker import EventWriter


@contextlib.contextmanager
def worker(name: str, *, parent: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    words = ["-m", "replay.isolate.worker", "--job", f"tests.replay.isolate.isolate_jobs:{name}"]
    with subprocess.Popen(
        [sys.executable, *words, "--parent", str(os.getpid() if parent is None else parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(os.environ),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_event(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    decoder = FrameDecoder()
    assert process.stdout is not None
    while True:
        data = os.read(process.stdout.fileno(), 4096)
        assert data, "the worker ended"
        for event in decoder.feed(data):
            return event


def test_frames_of_two_threads_do_not_mix() -> None:
    reads, writes = os.pipe()
    writer = EventWriter(writes)

    def send(letter: str) -> None:
        for _ in range(20):
            writer.emit({"event": "progress", "stage": letter * 200_000})  # above what a pipe holds: writes block

    threads = [threading.Thread(target=send, args=(letter,), daemon=True) for letter in "ab"]
    for thread in threads:
        thread.start()
    decoder = FrameDecoder()
    stages: list[set[str]] = []
    while len(stages) < 40:
        stages += [set(event["stage"]) for event in decoder.feed(os.read(reads, 1 << 16))]
    for thread in threads:
        thread.join()
    os.close(reads)
    os.close(writes)
    assert stages.count({"a"}) == stages.count({"b"}) == 20


def test_it_ends_when_its_stdin_closes() -> None:
    with worker("report_pid_and_hang") as process:
        assert process.stdin is not None
        process.stdin.write(encode({}))
        process.stdin.flush()
        assert first_event(process)["stage"] == "pid"
        process.stdin.close()
        assert process.wait(30) == 1


def test_it_does_not_start_for_a_parent_that_is_gone() -> None:
    with worker("echo", parent=1) as process:
        out, _ = process.communicate(encode({}), timeout=30)
        assert out == b""
        assert process.returncode == 1


@pytest.mark.parametrize(
    "sent", [b"", b"\x00\x00", encode({"a": 1})[:-1], b"\xff\xff\xff\xff{}", b"\x00\x00\x00\x02[]"]
)
def test_without_a_job_it_ends_and_says_nothing(sent: bytes) -> None:
    with worker("echo") as process:
        out, _ = process.communicate(sent, timeout=30)
        assert out == b""
        assert process.returncode != 0


def test_a_job_that_comes_byte_by_byte_runs() -> None:
    with worker("echo") as process:
        assert process.stdin is not None
        for byte in encode({"dump": "x"}):
            process.stdin.write(bytes([byte]))
            process.stdin.flush()
        assert process.stdout is not None
        (_, _, report) = FrameDecoder().feed(process.stdout.read())
        assert report["report"]["job"] == {"dump": "x"}
        assert process.wait(30) == 0
