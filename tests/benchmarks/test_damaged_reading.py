"""How fast the reader goes through damaged dumps, and what safety costs beside a decoder that checks nothing.

    python -m pytest -m benchmark -s tests/benchmarks/test_damaged_reading.py

The same damaged and forged files, a thousand of them from dumps of up to a few KiB, are read in turns by the reader
(seals, limits, every section unpacked), by the reader and the validator, and by protobuf's own decoder after a sha256
over the file, which takes many of them for good ones. The whole ones are read, too, beside the same decoder. One core.
Asserts no rate, since machines differ: the goal is 2,000 dumps a second. It asserts that the decoder is no more than
`MOST_TIMES` as fast, on the same files in the same run.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError

from dumps.errors import DumpError
from dumps.schema import state_pb2 as pb
from dumps.schema.layout import PREFIX
from dumps.strategies.damage import damage
from dumps.strategies.forge import forged
from dumps.validate import validate
from tests.benchmarks.rows import Row, fastest
from tests.reading import Rewritten, drawn_dumps

FILES = 1000
GOAL = 2000  # dumps a second on a core
MOST_TIMES = 20


@pytest.mark.benchmark
def test_damaged_dumps_a_second(tmp_path, measured):
    originals, dice = drawn_dumps(tmp_path, 60), random.Random(1)
    damaged = [(damage if n % 2 else forged)(dice.choice(originals), dice.randint) for n in range(FILES)]
    whole = [dice.choice(originals) for _ in range(FILES)]
    with Rewritten(tmp_path / "one.pplx") as file:
        runs = {
            "damaged": lambda: each(damaged, file.read),
            "damaged, validated": lambda: each(damaged, lambda data: validate(file.read(data)[0])),
            "damaged, decoder": lambda: each(damaged, lambda data: decode(file, data)),
            "whole": lambda: each(whole, file.read),
            "whole, decoder": lambda: each(whole, lambda data: decode(file, data)),
        }
        seconds = fastest(runs, rounds=5)
    rates = {name: FILES / took for name, took in seconds.items()}
    times = {name: seconds[name] / seconds[f"{name}, decoder"] for name in ("damaged", "whole")}
    measured(
        Row(
            what=f"damaged dumps through the reader, {FILES:,} files of {sum(map(len, damaged)) // FILES:,} bytes",
            target=f"{GOAL:,} a second on a core",
            measured=f"{rates['damaged']:,.0f}/s, validated {rates['damaged, validated']:,.0f}/s; "
            f"whole ones {rates['whole']:,.0f}/s; {times['damaged']:.1f} times (whole: {times['whole']:.1f}) the time "
            f"of protobuf's decoder with sha256",
            values={f"{name}_per_s": rate for name, rate in rates.items()}
            | {f"{name}_times_decoder": value for name, value in times.items()},
        )
    )
    assert max(times.values()) < MOST_TIMES


def each(files: list[bytes], read: Callable[[bytes], object]) -> None:
    for data in files:
        with suppress(DumpError, DecodeError):
            read(data)


def decode(file: Rewritten, data: bytes) -> None:
    """What the reader does, without anything that makes it safe."""
    file.write(data)
    read = file.path.read_bytes()
    hashlib.sha256(read).digest()
    pb.RuntimeState().ParseFromString(read[len(PREFIX) :])
