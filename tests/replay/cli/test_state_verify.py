"""``pplx-state verify``, as a person or a script calls it."""

from __future__ import annotations

import json

from click.testing import CliRunner

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.cli.groups import state as state_group
from tests.small_dump import small_sections, small_state


def call(*args):
    return CliRunner().invoke(state_group, [str(arg) for arg in args])


def test_a_good_dump(small):
    result = call("verify", small)
    assert result.exit_code == 0
    assert "5 seals hold" in result.stdout
    assert "3 section parts decode" in result.stdout
    assert "no contradiction in 2 requests, 3 steps, 3 KV blocks" in result.stdout


def test_of_a_program_its_calls_are_counted(tmp_path):
    state = pb.RuntimeState()
    state.manifest.id = "0123456789abcdef"
    state.program.entry = "agent:main"
    state.tool_calls.add(id="a", name="search", status="pending")
    write_dump(tmp_path / "program.pplx", state)
    said = call("verify", tmp_path / "program.pplx").stdout
    assert "in 0 exchanges, 1 tool calls, 0 file operations" in said
    assert "KV" not in said


def test_a_contradiction(tmp_path):
    state = small_state()
    state.kv.tables[0].num_tokens = 9
    write_dump(tmp_path / "bad.pplx", state, small_sections())
    result = call("verify", tmp_path / "bad.pplx")
    assert result.exit_code == 4
    assert "kv.table-overfull" in result.stdout
    document = json.loads(call("verify", tmp_path / "bad.pplx", "--json").stdout)
    assert document["valid"] is False
    assert {"rule", "path", "message", "severity"} == set(document["findings"][0])


def test_a_warning_does_not_fail(tmp_path):
    state = small_state()
    state.steps[1].start_ns = 1
    write_dump(tmp_path / "odd.pplx", state)
    result = call("verify", tmp_path / "odd.pplx")
    assert result.exit_code == 0
    assert "schedule.time" in result.stdout


def test_a_damaged_section(small, tmp_path):
    data = bytearray(small.read_bytes())
    with open_dump(small) as dump:
        data[dump.sections[0].data_offset] ^= 1
    (tmp_path / "bad.pplx").write_bytes(data)
    result = call("verify", tmp_path / "bad.pplx")
    assert result.exit_code == 4
    assert "not what was sealed" in result.stderr


def test_json(small):
    document = json.loads(call("verify", small, "--json").stdout)
    assert document["valid"] is True
    assert document["checked"] == {"seals": 5, "bytes": small.stat().st_size, "sections": 3}
