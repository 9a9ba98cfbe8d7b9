"""``pplx-replay why`` as a person calls it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from replay.cli.why import why
from tests.fixture_folders import FIXTURES

OVERFLOW = FIXTURES / "kv-overflow" / "dump.pplx"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(why, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def full_pool() -> Result:
    return call(OVERFLOW, "--target", "schedule", "--pairs")


def test_people_read_a_table_and_what_it_says(full_pool):
    assert full_pool.exit_code == 0, full_pool.output
    lines = full_pool.stdout.splitlines()
    rows = [line.split(maxsplit=2)[:2] for line in lines if line.startswith(("kv.num_blocks", "schedule=live"))]
    assert rows == [["kv.num_blocks=72", "vanishes"], ["schedule=live", "stays"]]
    assert "The failure needs a KV pool of fewer than 72 blocks" in full_pool.stdout
    assert "1 pairs that do not make it vanish: another failure 1" in full_pool.stdout
    assert "Not tried: kernels=stock and model.dtype=float32, since --target schedule has no model." in full_pool.stdout
    assert "scheduler.prefix_cache=false (it ran without a prefix cache)" in " ".join(full_pool.stdout.split())
    assert "Noise or corruption: not computed: --target schedule has no model." in full_pool.stdout
    assert "single changes" in full_pool.stderr


def test_a_model_is_loaded_in_a_worker_and_its_numbers_are_told():
    done = call(FIXTURES / "nan-block" / "dump.pplx", "--json", "--repeat", "1")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["vanishes_with"] == ["kv=recompute"]
    found = {one["name"]: one["effect"] for one in document["singles"]}
    assert found["kernels=stock"] == "stays"
    assert found["scope=request"] == "cannot tell"
    assert document["numbers"]["conclusion"] == "corruption"
    assert document["baseline"]["verdict"] == "reproduced"
    assert document["complete"]


def test_a_dump_that_does_not_reproduce_ends_the_command():
    done = call(FIXTURES / "nan-block" / "dump.pplx", "--target", "schedule", "--json")
    assert done.exit_code == 20
    error = json.loads(done.stdout)["error"]
    assert error["class"] == "NotReproduced"
    assert "needs-inference" in error["message"]


def test_an_option_that_changes_nothing_is_refused():
    done = call(OVERFLOW, "--answers", "recorded")
    assert done.exit_code == 2
    assert "are for --target app=" in done.stderr
