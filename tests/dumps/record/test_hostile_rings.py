"""Rings made to cost their reader hours or all memory: each is read, or refused, for what its own size allows."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest

from dumps.errors import CorruptDump
from dumps.record.image import is_ring
from dumps.record.records import KeyframeRecord, StepStart, encode_keyframe
from dumps.record.recover import read_ring, recover
from dumps.schema.reader import open_dump
from tests.crafted_ring import craft_ring, craft_slot

MANY = 60_000

SLOTS = [craft_slot(serial, 1 << 24) for serial in range(1, 1001)]
QUEUE = encode_keyframe(KeyframeRecord(0, list(range(8)), [], list(range(1, 2 * MANY))), 0)
FROM_THE_END = [(0, 2 * MANY - 1 - place) for place in range(MANY)]

HOSTILE: dict[str, dict[str, Any]] = {
    "blocks-from-the-end": {
        "num_blocks": 2 * MANY,
        "keyframe_bytes": 8 * MANY,
        "step": StepStart(0, 0, [1], [0], [1], FROM_THE_END, [1], [1]),
    },
    "admitted-from-the-end": {
        "step": StepStart(0, 0, arrived=list(range(1, MANY)), admitted=list(range(MANY - 1, 0, -1)))
    },
    "queue-in-a-keyframe": {"keyframe": QUEUE, "keyframe_bytes": 1 << 20},
    "prompts-that-are-not-there": {"step": StepStart(0, 0, arrived=list(range(1, 1001))), "slots": SLOTS},
}


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


@pytest.mark.parametrize("name", HOSTILE)
def test_work_grows_with_the_file_not_with_its_square(tmp_path, name):
    ring = craft_ring(tmp_path / "a.ring", **HOSTILE[name])
    code = "import sys; from pathlib import Path; from dumps.record.recover import recover; "
    code += "recover(Path(sys.argv[1]), Path(sys.argv[2]))"
    out = tmp_path / "a.pplx"
    command = [sys.executable, "-c", code, ring, out]
    env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, preexec_fn=limited, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr.decode()[-500:]
    with open_dump(out) as dump:
        assert dump.state.requests


def test_a_pool_larger_than_its_keyframes_is_refused(tmp_path):
    ring = craft_ring(tmp_path / "a.ring", num_blocks=1 << 24, step=StepStart(0, 0))
    with pytest.raises(CorruptDump, match="no room for so many"):
        recover(ring, tmp_path)


def test_nesting_that_only_the_parser_survives_is_corrupt(tmp_path):
    deep = b'{"active_model":"\\ud800","x":' + b"[" * 900 + b"]" * 900 + b"}"
    with pytest.raises(CorruptDump, match="nested too deeply"):
        read_ring(craft_ring(tmp_path / "a.ring", identity=deep))


def test_a_pipe_is_no_ring_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert not is_ring(tmp_path / "pipe")
