"""The entropy seam: what was drawn is noted at level full, its size below, and the program never notices."""

from __future__ import annotations

import os
import random
import secrets
import sys
import threading
import types
import uuid
from os import urandom as early_urandom
from random import seed as early_seed

import numpy.random  # at its import it draws once more
import pytest

from dumps.random_state import SIZE, TwisterState
from dumps.record.recorder import RecordLevel
from dumps.record.seams import entropy
from dumps.record.seams.log import LogLimits, WorldLog
from dumps.schema import state_pb2 as pb

REAL = {"urandom": os.urandom, "seed": random.seed, "class seed": random.Random.seed, "uuid1": uuid.uuid1}


def draws(log: WorldLog, source: str) -> list[pb.EntropyDraw]:
    return [draw for draw in log.entropy if draw.source == source]


def test_full_keeps_the_bytes_of_every_way_to_draw() -> None:
    log = WorldLog(level=RecordLevel.FULL)
    undo = entropy.install(log)
    try:
        drawn = [
            os.urandom(5),
            early_urandom(6),
            secrets.token_bytes(20),
            bytes.fromhex(secrets.token_hex(9)),
            uuid.uuid4().bytes,
        ]
        random.SystemRandom().random()
        numpy.random.default_rng()
        one = uuid.uuid1()
        direct = os.getrandom(4)
    finally:
        undo()
    noted = draws(log, "os.urandom")
    assert [draw.data for draw in noted[:4]] == drawn[:4]
    fixed_bits = bytes.fromhex("ffffffffffff0fff3fffffffffffffff")
    assert [a & b for a, b in zip(noted[4].data, fixed_bits, strict=True)] == [
        a & b for a, b in zip(drawn[4], fixed_bits, strict=True)
    ]
    assert [draw.size for draw in noted] == [5, 6, 20, 9, 16, 7, 16]
    assert [draw.data for draw in draws(log, "uuid.uuid1")] == [one.bytes]
    assert [draw.data for draw in draws(log, "os.getrandom")] == [direct]
    assert noted[0].task == "MainThread"
    assert noted[0].time_ns > 0


@pytest.mark.parametrize("level", [RecordLevel.SHAPE, RecordLevel.TOKENS])
def test_below_full_no_byte_is_kept(level: RecordLevel) -> None:
    log = WorldLog(level=level)
    undo = entropy.install(log)
    try:
        os.urandom(32)
        secrets.token_bytes(16)
        uuid.uuid1()
        random.Random()
    finally:
        undo()
    assert {draw.data for draw in log.entropy} == {b""}
    assert [draw.size for draw in draws(log, "os.urandom")] == [32, 16]
    assert {draw.source for draw in log.entropy} == {
        "os.urandom", "uuid.uuid1", "random.seed", "random.state", "numpy.random.state",
    }  # fmt: skip


def test_states_are_noted_at_the_start_and_at_each_seeding_from_the_system() -> None:
    log = WorldLog(level=RecordLevel.FULL)
    before, numpy_before = random.getstate(), numpy.random.get_state(legacy=False)
    undo = entropy.install(log)
    try:
        generator = random.Random()
        seeded = generator.getstate()
        random.Random(7)
        random.seed(7)
        random.seed()
        module_seeded = random.getstate()
        early_seed()
        last = random.getstate()
    finally:
        undo()
    (start,) = draws(log, "random.state")
    assert TwisterState.from_bytes(start.data).for_random() == before
    (numpy_start,) = draws(log, "numpy.random.state")
    assert TwisterState.from_bytes(numpy_start.data) == TwisterState.of_numpy(numpy_before)
    seedings = [TwisterState.from_bytes(draw.data).for_random() for draw in draws(log, "random.seed")]
    assert seedings == [seeded, module_seeded, last]
    assert start.size == SIZE


def test_bytes_come_from_the_original_unchanged_and_its_errors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    log = WorldLog(level=RecordLevel.FULL)
    monkeypatch.setattr(os, "urandom", lambda size: bytes(range(size)))
    undo = entropy.install(log)
    try:
        assert os.urandom(4) == bytes(range(4))
    finally:
        undo()
    monkeypatch.undo()
    undo = entropy.install(log)
    try:
        for bad in (-1, "1", None):
            with pytest.raises((ValueError, TypeError)):
                os.urandom(bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            random.seed([])  # type: ignore[arg-type]
    finally:
        undo()
    assert len(draws(log, "os.urandom")) == 1


def test_a_log_that_fails_or_is_full_never_costs_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    log = WorldLog(level=RecordLevel.FULL, limits=LogLimits(entropy=3))
    undo = entropy.install(log)
    try:
        for _ in range(5):
            assert len(os.urandom(8)) == 8
        assert log.lost["entropy"] == 4
        monkeypatch.setattr(log, "watchers", [lambda: 1 / 0])
        assert len(os.urandom(8)) == 8
        assert len(secrets.token_bytes()) == 32
    finally:
        undo()


def test_a_forked_child_notes_nothing_and_does_not_wait_for_its_parents_lock() -> None:
    log = WorldLog(level=RecordLevel.FULL)
    undo = entropy.install(log)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with log.lock:
            held.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(os.urandom(8)) == 8 else 1)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    undo()
    assert not draws(log, "os.urandom")


def test_threads_draw_at_once_and_all_is_noted() -> None:
    log = WorldLog(level=RecordLevel.FULL)
    undo = entropy.install(log)
    drawn: list[bytes] = []
    threads = [threading.Thread(target=lambda: drawn.extend(os.urandom(16) for _ in range(200))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    undo()
    assert sorted(draw.data for draw in draws(log, "os.urandom")) == sorted(drawn)
    assert len(drawn) == 800


def test_another_generator_of_numpy_is_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    log = WorldLog(level=RecordLevel.FULL)
    other = types.ModuleType("numpy.random")
    other.get_state = lambda legacy: {"bit_generator": "PCG64"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numpy.random", other)
    entropy.install(log)()
    assert log.lost["numpy.random.state"] == 1


def test_everything_is_back_in_place() -> None:
    entropy.install(WorldLog(level=RecordLevel.FULL))()
    now = {"urandom": os.urandom, "seed": random.seed, "class seed": random.Random.seed, "uuid1": uuid.uuid1}
    assert all(now[name] is REAL[name] for name in now)
    assert early_urandom is REAL["urandom"]
    assert vars(random)["_urandom"] is REAL["urandom"]
