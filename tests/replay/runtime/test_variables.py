"""The recorded environment variables, around a program that runs in this process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from replay.runtime.env import load_env
from replay.runtime.variables import put_in_place
from tests.small_programs import SmallPrograms, state_of

READS = """
import random
SERVICE = os.environ.get("SERVICE")
DRAWN = os.urandom(2).hex()

def main():
    names = ("SERVICE", "LATER", "PYTHONHASHSEED", "HOME")
    return SERVICE, [os.environ.get(name) for name in names], time.localtime(0).tm_hour, os.urandom(2).hex()
"""


@pytest.fixture
def programs(tmp_path: Path) -> SmallPrograms:
    return SmallPrograms(tmp_path)


def test_within_the_block_they_are_the_recorded_ones_and_afterwards_those_of_today(
    programs: SmallPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = programs.write(READS)
    dump = programs.record(name, variables={"SERVICE": "http://then", "TZ": "Etc/GMT-5", "LD_PRELOAD": ""})
    (drawn,) = (one.data.hex() for one in state_of(dump).entropy if one.size == 2)
    monkeypatch.setenv("SERVICE", "http://today")
    monkeypatch.setenv("LATER", "1")
    home, before, hour = os.environ.get("HOME"), dict(os.environ), time.localtime(0).tm_hour
    env, fresh = load_env(dump), programs.write(READS)
    with env.loading():
        module = programs.module(fresh)
        assert "LATER" not in os.environ
    assert dict(os.environ) == before
    with env:
        service, seen, hour_then, drawn_again = module.main()
    assert service == "http://then"
    assert seen == ["http://then", None, os.environ.get("PYTHONHASHSEED"), home]
    assert (hour_then, drawn_again) == (5, drawn)
    assert dict(os.environ) == before
    assert time.localtime(0).tm_hour == hour


def test_what_the_program_sets_itself_stays_but_for_what_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_TODAY", "1")
    monkeypatch.delenv("OWN", raising=False)
    undo = put_in_place({"RECORDED": "a", "PATH": "/hostile", "LD_PRELOAD": "/x.so", "B\0": "x", "": "x"})
    assert os.environ["RECORDED"] == "a"
    assert "OF_TODAY" not in os.environ
    assert os.environ["PATH"] != "/hostile"
    assert "LD_PRELOAD" not in os.environ
    monkeypatch.setenv("OWN", "1")
    os.environ["RECORDED"] = "b"
    undo()
    assert (os.environ["OWN"], os.environ["OF_TODAY"], "RECORDED" in os.environ) == ("1", "1", False)
