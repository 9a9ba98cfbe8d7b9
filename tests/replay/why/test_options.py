"""What the question takes, and what it refuses before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.errors import UsageError
from replay.why.options import NotReproduced, Options

DUMP = Path("crash.pplx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "engine"}, "target: wants auto, inference, schedule or app="),
        ({"target": "endpoint=http://a"}, "endpoint=http://a"),
        ({"target": "app=nothing"}, "names no callable"),
        ({"answers": "recorded"}, "are for --target app="),
        ({"app_path": ("src",)}, "are for --target app="),
        ({"target": "schedule", "model": Path("m")}, "--model changes nothing"),
        ({"target": "schedule", "device": "cuda"}, "--device changes nothing"),
        ({"extra": ("kv.num_block=3",)}, "there is no such setting"),
        ({"extra": ("kv.num_blocks",)}, "no '=' in it"),
        ({"target": "schedule", "extra": ("model.dtype=float32",)}, "changes nothing in --target schedule"),
        ({"target": "app=a:b", "extra": ("kv.num_blocks=3",)}, "only tool.ID.result"),
    ],
)
def test_what_changes_nothing_or_does_not_exist_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Options(dump=DUMP, **options)


def test_a_program_is_run_without_the_options_of_an_engine():
    job = Options(dump=DUMP, target="app=a:b", answers="recorded", app_path=("src",)).job("app=a:b")
    assert job["app_path"] == [str(Path("src").absolute())]
    assert "device" not in job


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("not-reproduced", 10), ("different-failure", 11), ("diverged", 12), ("inconclusive", 20), ("reproduced", 20)],
)
def test_a_dump_that_does_not_reproduce_ends_as_a_replay_of_it_does(verdict, code):
    assert NotReproduced("no", verdict=verdict).exit_code == code
    assert NotReproduced("no", exit_code=21).exit_code == 21
