"""Thousands of damaged and forged dumps through the reader: an error of ours or a valid state, and little memory."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from dumps.errors import DumpError
from dumps.limits import MIB
from dumps.strategies.damage import damage
from dumps.strategies.forge import FORGERIES, fields_of, forged, sealed
from dumps.validate import validate
from tests.reading import HighWater, Rewritten, drawn_dumps

ORIGINALS = 60
IN_CI, ALL = 20_000, 100_000

MOST_MEMORY = 32 * MIB
"""What reading may add to the process, for files of a few KiB and bombs of a few MiB."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> list[bytes]:
    return drawn_dumps(tmp_path_factory.mktemp("originals"), ORIGINALS)


@pytest.fixture
def file(tmp_path):
    with Rewritten(tmp_path / "damaged.pplx") as file:
        yield file


@pytest.mark.parametrize("count", [IN_CI, pytest.param(ALL, marks=pytest.mark.long)])
def test_any_number_of_damaged_dumps_gives_an_error_or_a_valid_state(originals, file, count):
    dice, outcomes, untold = random.Random(count), Counter[str](), 0
    with HighWater() as memory:
        for number in range(count):
            original = dice.choice(originals)
            changed = (damage if number % 2 else forged)(original, dice.randint)
            try:
                state, _ = file.read(changed)
            except DumpError as error:
                outcomes[type(error).__name__] += 1
                untold += not (error.message and error.remedy)
                continue
            if number % 2:
                assert changed == original
            outcomes["read as it was" if number % 2 else "read as it was forged"] += 1
            assert all(finding.rule for finding in validate(state))
    assert memory.grown is None or memory.grown < MOST_MEMORY
    assert not untold
    assert {"BadMagic", "TornDump", "CorruptDump", "LimitExceeded", "InvalidState"} <= set(outcomes)
    assert outcomes["read as it was forged"] > count // 20, outcomes


def test_a_salvaging_reader_gives_an_error_or_part_of_what_was_written(originals, file):
    dice, read = random.Random(1), 0
    for _ in range(1000):
        original = dice.choice(originals)
        try:
            state, sections = file.read(damage(original, dice.randint), salvage=True)
        except DumpError:
            continue
        whole, all_sections = file.read(original)
        assert state == whole
        assert all(section in all_sections for section in sections)
        read += 1
    assert read > 100


def test_what_is_taken_apart_is_sealed_again_as_a_whole_dump(originals, file):
    for original in originals:
        assert file.read(sealed(fields_of(original))) == file.read(original)


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_each_forgery_changes_a_file_whose_seals_hold(originals, file, forgery):
    dice, seen = random.Random(3), Counter[bool]()
    problems: list[DumpError] = []
    for _ in range(60):
        fields = fields_of(dice.choice(originals))
        changed = forgery(list(fields), dice.randint)
        seen[changed != fields] += 1
        try:
            file.read(sealed(changed))
        except DumpError as error:
            problems.append(error)
    assert not [error for error in problems if "sha256" in error.message]
    assert seen[True] > seen[False]


def test_the_high_water_mark_is_seen(tmp_path):
    with HighWater() as memory:
        block = bytearray(MOST_MEMORY)
        block[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(block[:: os.sysconf("SC_PAGE_SIZE")])
        del block
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("reads Linux's high-water mark")
    assert memory.grown is not None
    assert memory.grown >= MOST_MEMORY * 0.9
