"""A program that draws from every source is recorded, and draws the same again; what was not recorded is made up."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from os import urandom as early_urandom
from uuid import uuid4 as early_uuid4

import numpy as np
import pytest

from dumps.random_state import SIZE, TwisterState
from dumps.record.recorder import RecordLevel
from dumps.record.seams import entropy as seam
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from replay.runtime.entropy import Entropy, hash_seed_finding, needs_reexec


def everything() -> list[object]:
    """One of each way to draw."""
    own = random.Random()
    legacy = np.random.RandomState()
    before = random.random()
    random.seed()
    return [
        before,
        random.gauss(0, 1),
        random.sample(range(1000), 5),
        own.random(),
        os.urandom(12),
        early_urandom(12),
        os.getrandom(6),
        secrets.token_hex(16),
        secrets.token_urlsafe(),
        secrets.randbits(75),
        random.SystemRandom().random(),
        uuid.uuid4(),
        early_uuid4(),
        uuid.uuid1(),
        np.random.rand(3).tolist(),
        np.random.default_rng().integers(0, 10**9, 3).tolist(),
        np.random.SeedSequence().entropy,
        legacy.standard_normal(2).tolist(),
        os.path.basename(tempfile.mktemp()),
    ]


def record(program: Callable[[], object], level: RecordLevel = RecordLevel.FULL) -> tuple[object, list[pb.EntropyDraw]]:
    log = WorldLog(level=level)
    undo = seam.install(log)
    try:
        return program(), log.entropy
    finally:
        undo()


def replay(entropy: Entropy, program: Callable[[], object]) -> object:
    undo = entropy.install()
    try:
        return program()
    finally:
        undo()


@pytest.fixture(autouse=True)
def _fresh_names() -> None:
    tempfile._name_sequence = None  # type: ignore[attr-defined]  # seeds itself when it is first used


def test_a_replay_draws_what_was_drawn() -> None:
    drawn, draws = record(everything)
    tempfile._name_sequence = None  # type: ignore[attr-defined]
    entropy = Entropy(draws=draws, key="dump")
    assert replay(entropy, everything) == drawn
    assert not entropy.synthesised
    assert not entropy.findings
    assert not entropy.leftovers()
    assert entropy.replayed.total() == len(draws)
    tempfile._name_sequence = None  # type: ignore[attr-defined]
    assert everything() != drawn, "and afterwards the system's entropy is back"


@pytest.mark.parametrize("level", [RecordLevel.SHAPE, None])
def test_without_bytes_they_are_made_up_the_same_in_every_replay_of_a_dump(level: RecordLevel | None) -> None:
    draws = record(everything, level)[1] if level else []
    seen = []
    for key in ("dump", "dump", "another"):
        tempfile._name_sequence = None  # type: ignore[attr-defined]
        entropy = Entropy(draws=draws, key=key)
        seen.append(replay(entropy, lambda: [value for value in everything() if not isinstance(value, uuid.UUID)]))
        assert not entropy.replayed.total()
        assert {"os.urandom", "random.seed", "random.state", "uuid.uuid1", "numpy.random.state"} <= set(
            entropy.synthesised
        )
        assert not entropy.findings, "that nothing was recorded is the ledger's to say"
    assert seen[0] == seen[1] != seen[2]


def test_draws_of_a_size_keep_their_order_when_others_come_and_go() -> None:
    draws = [
        pb.EntropyDraw(source="os.urandom", data=data, size=len(data)) for data in (b"aaaa", b"bb", b"cccc", b"dd")
    ]
    entropy = Entropy(draws=draws, key="dump")
    undo = entropy.install()
    try:
        assert [os.urandom(2), os.urandom(3), os.urandom(4), os.urandom(2)][::2] == [b"bb", b"aaaa"]
        assert len(os.urandom(2)) == 2
        assert len(os.urandom(2)) == 2
    finally:
        undo()
    assert entropy.replayed == {"os.urandom": 3}
    assert entropy.synthesised["os.urandom"] == 3
    assert entropy.findings == [
        "the program drew 3 bytes from os.urandom; recorded are draws of 2, 4 bytes",
        "the program drew 2 bytes from os.urandom more often than it was recorded to",
    ]
    assert entropy.leftovers() == ["1 recorded draws of 4 bytes from os.urandom were not made in the replay"]


def test_a_state_that_is_damaged_is_told_and_made_up() -> None:
    bad = TwisterState.of_random(random.getstate()).to_bytes()[:-16] + b"\xff" * 16
    draws = [pb.EntropyDraw(source=source, data=bad, size=SIZE) for source in ("random.state", "random.seed")]
    entropy = Entropy(draws=draws, key="dump")
    assert replay(entropy, lambda: random.Random().random()) == replay(
        Entropy(draws=[], key="dump"), lambda: random.Random().random()
    )
    assert [finding.split(":")[0] for finding in entropy.findings] == [
        "the recorded random.state cannot be used",
        "the recorded random.seed cannot be used",
    ]
    assert not entropy.replayed.total()


@pytest.mark.parametrize("bad", [-1, "4", None, 1.5])
def test_a_draw_refuses_what_it_always_refused(bad: object) -> None:
    for name in ("urandom", "getrandom"):
        with pytest.raises((ValueError, TypeError, OSError)) as stock:
            getattr(os, name)(bad)

        def draw(name: str = name) -> object:
            return getattr(os, name)(bad)

        with pytest.raises(stock.type):
            replay(Entropy(draws=[], key="dump"), draw)


def test_seeds_of_the_program_stay_its_own() -> None:
    def seeded() -> list[object]:
        random.seed("a text")
        np.random.seed(5)
        return [random.random(), random.Random(3).random(), np.random.rand(), np.random.default_rng(9).random()]

    expected = seeded()
    assert replay(Entropy(draws=[], key="dump"), seeded) == expected


def test_global_states_are_restored() -> None:
    before, numpy_before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    replay(Entropy(draws=[], key="dump"), lambda: [random.random(), np.random.rand()])
    assert random.getstate() == before
    assert np.random.get_state()[1].tolist() == numpy_before  # type: ignore[index]


LATE_NUMPY = """
import sys
from replay.runtime.entropy import Entropy
assert "numpy.random" not in sys.modules, "this test wants it late"
entropy = Entropy(draws=[], key="dump")
entropy.install()
import numpy
print(numpy.random.rand(2).tolist(), sorted(entropy.synthesised))
"""


def test_numpy_that_is_imported_later_is_seeded_from_the_stream() -> None:
    outputs = [
        subprocess.run([sys.executable, "-c", LATE_NUMPY], capture_output=True, text=True, check=False)
        for _ in range(2)
    ]
    assert outputs[0].returncode == 0, outputs[0].stderr
    assert outputs[0].stdout == outputs[1].stdout
    assert "os.urandom" in outputs[0].stdout


@pytest.mark.parametrize(
    ("recorded", "environ", "wanted"),
    [
        ("random", {}, "0"),
        ("random", {"PYTHONHASHSEED": "0"}, None),
        ("random", {"PYTHONHASHSEED": "random"}, "0"),
        ("", {}, "0"),
        ("123", {}, "123"),
        ("123", {"PYTHONHASHSEED": "0"}, "123"),
        ("123", {"PYTHONHASHSEED": "123"}, None),
        ("4294967295", {}, "4294967295"),
        ("4294967296", {}, "0"),
        ("-1", {}, "0"),
        ("٣", {}, "0"),
        ("1" * 5000, {}, "0"),
        ("0; rm", {}, "0"),
    ],
)
def test_the_hash_seed_that_a_child_must_be_started_with(
    recorded: str, environ: dict[str, str], wanted: str | None
) -> None:
    program = pb.Program(hash_seed=recorded)
    assert needs_reexec(program, environ) == wanted
    fixed = recorded in ("123", "4294967295")
    assert bool(hash_seed_finding(program)) is not fixed


def test_a_child_with_that_seed_has_the_recorded_hashes() -> None:
    program = pb.Program(hash_seed="77")
    seed = needs_reexec(program, os.environ)
    assert seed == "77"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", "print(hash('text'))"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
