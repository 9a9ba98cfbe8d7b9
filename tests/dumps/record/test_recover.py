"""Recovery after a real SIGKILL of a real process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dumps.errors import DumpError
from dumps.record.recover import WriterAlive, read_ring, recover, recover_image
from dumps.schema.reader import open_dump
from dumps.validate import validate
from tests.flight import Flight, make_config, make_recorder

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.flight import Flight, make_config, make_recorder
config = make_config()
flight = Flight(make_recorder(Path({ring!r}), config, ring_bytes=8192), config, seed={seed})
print("ready", flush=True)
while True:
    flight.fly(1)
"""


def start_writer(ring: Path, seed: int) -> subprocess.Popen[bytes]:
    code = WRITER.format(root=str(Path(__file__).parents[3]), ring=str(ring), seed=seed)
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    return writer


def twin(ring: Path, seed: int, step: int) -> Flight:
    """The same flight in this process: it is deterministic, so it shows what the dead writer did."""
    config = make_config()
    flight = Flight(make_recorder(ring, config, ring_bytes=8192), config, seed=seed)
    while not flight.ends or flight.ends[-1].index < step + 1:
        flight.fly(1)
    return flight


@pytest.mark.parametrize("seed", range(4))
def test_killed_in_flight(tmp_path, seed):
    ring = tmp_path / "a.ring"
    writer = start_writer(ring, seed)
    laps = 3 * 8192 + random.Random(seed).randrange(20_000)
    while sum(len(run) for run in read_ring(ring).runs) == 0 or read_ring(ring).runs[0][-1].sequence < laps // 80:
        assert writer.poll() is None
    with pytest.raises(WriterAlive) as caught:
        recover(ring, tmp_path)
    assert "--force" in caught.value.remedy
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert writer.stdout is not None
    writer.stdout.close()

    path = recover(ring, tmp_path)

    assert ring.exists()
    assert path.stat().st_mode & 0o777 == 0o600
    with open_dump(path) as dump:
        assert path.name == f"{dump.state.manifest.id}.pplx"
        assert dump.state.manifest.reason == "process-death"
        assert dump.state.steps[0].index > 0
        assert [f for f in validate(dump.state) if f.severity == "error"] == []
        twin(tmp_path / "twin.ring", seed, dump.state.steps[-1].index).check(dump.state)
    with pytest.raises(DumpError, match="exists already"):
        recover(ring, tmp_path)
    assert recover(ring, tmp_path / "other.pplx") == tmp_path / "other.pplx"


def test_a_live_ring_is_recovered_by_force_only(tmp_path):
    config = make_config()
    flight = Flight(make_recorder(tmp_path / "a.ring", config), config)
    flight.fly(5)
    with pytest.raises(WriterAlive, match=str(os.getpid())):
        recover(tmp_path / "a.ring", tmp_path)
    with open_dump(recover(tmp_path / "a.ring", tmp_path, force=True)) as dump:
        flight.check(dump.state)
        assert dump.state.manifest.reason == "demand"


def test_a_reused_pid_is_not_taken_for_the_writer(tmp_path):
    config = make_config()
    make_recorder(tmp_path / "a.ring", config)
    fd = os.open(tmp_path / "a.ring", os.O_RDONLY)
    writer = read_ring(tmp_path / "a.ring").header.writer
    assert writer.lives(fd)
    assert not replace(writer, start_ticks=writer.start_ticks + 1).lives(fd)
    assert not replace(writer, pid=2**22 + 1).lives(fd)
    os.close(fd)


def test_in_another_pid_namespace_the_lock_decides(tmp_path):
    config = make_config()
    recorder = make_recorder(tmp_path / "a.ring", config)
    fd = os.open(tmp_path / "a.ring", os.O_RDONLY)
    elsewhere = replace(read_ring(tmp_path / "a.ring").header.writer, pid_namespace=1)
    assert elsewhere.lives(fd)
    recorder.close(clean=False)
    assert not elsewhere.lives(fd)
    os.close(fd)


def test_an_image_taken_while_alive_stays_refused(tmp_path):
    config = make_config()
    recorder = make_recorder(tmp_path / "a.ring", config)
    image = read_ring(tmp_path / "a.ring")
    recorder.close(clean=False)
    with pytest.raises(WriterAlive):
        recover_image(image, tmp_path)
