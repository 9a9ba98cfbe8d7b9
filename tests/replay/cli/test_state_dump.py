"""``pplx-state dump``, as a person or a script calls it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from dumps.ledger import record
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.cli import state_dump
from replay.cli.groups import state as state_group
from tests.fixture_folders import FIXTURES
from tests.handmade import field, manifest_field, seal_up
from tests.small_dump import small_state


def call(*args):
    return CliRunner().invoke(state_group, [str(arg) for arg in args])


class TestPeople:
    def test_what_failed_comes_first_and_in_words(self, small):
        result = call("dump", small)
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert lines[0].startswith("Dump 0123456789abcdef")
        at = lines.index("What failed")
        assert "Request req-b was cut short without being told so: the KV cache had no block left" in lines[at + 1]
        for heading in (
            "Requests",
            "Last steps",
            "KV cache at the end of the record",
            "Sections",
            "Fidelity ledger",
            "Model and engine",
        ):
            assert heading in lines
            assert lines.index(heading) > at
        assert any("kv_cache_used_bytes" in line for line in lines)

    def test_what_is_off_by_default_is_shown_when_it_was_on(self, tmp_path):
        state = small_state()
        del state.quirks[:]
        state.engine.prefix_cache = state.engine.checks = False
        state.engine.kv_quant_bits = 0
        write_dump(tmp_path / "off.pplx", state)
        assert "switched on" not in call("dump", tmp_path / "off.pplx").stdout
        state.engine.prefix_cache = state.engine.checks = True
        state.engine.kv_quant_bits = 8
        state.quirks.add(name="multinomial")
        write_dump(tmp_path / "on.pplx", state)
        shown = call("dump", tmp_path / "on.pplx").stdout
        (line,) = (line for line in shown.splitlines() if "switched on" in line)
        assert line.split(maxsplit=2)[2] == "prefix cache, checks, KV cache of 8-bit integers, quirk multinomial"

    def test_a_dump_without_a_failure_or_a_step_says_why_and_claims_no_number(self, tmp_path):
        state = small_state()
        del state.failures[:]
        state.kv.free_blocks = b""
        record(state, "failures", pb.ABSENT, "the engine failed (KeyError: 'a') and began anew")
        record(state, "kv.free_blocks", pb.ABSENT, "no step was taken yet")
        write_dump(tmp_path / "anew.pplx", state)
        shown = call("dump", tmp_path / "anew.pplx").stdout.splitlines()
        at = shown.index("What failed")
        assert shown[at + 1].strip().startswith("no failure is recorded")
        assert shown[at + 2].strip() == "the engine failed (KeyError: 'a') and began anew"
        (blocks,) = (line for line in shown if line.strip().startswith("blocks"))
        assert blocks.endswith(", the free ones not known")

    def test_nothing_in_a_dump_acts_on_a_terminal(self, tmp_path):
        state = small_state()
        state.failures[0].message = "\x1b[2J\u202e[red]boo[/red]"
        state.requests[0].id = "\x1b]0;title\x07"
        state.manifest.tenant = "a\nb"
        write_dump(tmp_path / "evil.pplx", state)
        for args in ([], ["--raw"], ["--raw", "--all"], ["--json"], ["--field", "failures[0].message"]):
            result = call("dump", tmp_path / "evil.pplx", *args)
            assert result.exit_code == 0
            assert "\x1b" not in result.stdout
            assert "\u202e" not in result.stdout
        assert "[red]boo[/red]" in call("dump", tmp_path / "evil.pplx").stdout

    def test_a_large_dump_is_summed_up(self, tmp_path):
        state = small_state()
        for number in range(100):
            state.requests.add(id=f"more-{number}", status="waiting", num_prompt_tokens=1)
        write_dump(tmp_path / "large.pplx", state)
        out = call("dump", tmp_path / "large.pplx").stdout
        assert "... and 82 more requests" in out
        assert "more-99" not in out

    def test_without_anything_but_a_manifest(self, tmp_path):
        state = small_state()
        for name in ("model", "engine", "failures", "requests", "scheduler", "steps", "kv", "ledger"):
            state.ClearField(name)
        write_dump(tmp_path / "bare.pplx", state)
        result = call("dump", tmp_path / "bare.pplx")
        assert result.exit_code == 0
        assert "no failure is recorded" in result.stdout


class TestJson:
    def test_one_document(self, small):
        document = json.loads(call("dump", small, "--json").stdout)
        assert document["requests"][0]["prompt_token_ids"] == [1, 2, 3]
        assert document["active_model"] == "smollm2-135m"
        assert [info["kind"] for info in document["file"]["sections"]] == ["kv-contents", "log", "empty"]
        with open_dump(small) as dump:
            assert document["file"]["sha256"] == dump.sha256

    def test_a_field(self, small):
        assert json.loads(call("dump", small, "--field", "requests[0].sampling.seed", "--json").stdout) == 7
        assert json.loads(call("dump", small, "--field", "requests[1].finish_step", "--json").stdout) == 2
        assert json.loads(call("dump", small, "--field", "requests[0].finish_step", "--json").stdout) is None
        assert json.loads(call("dump", small, "--field", "kv.free_blocks", "--json").stdout) == [2]

    def test_an_error_is_a_document_too(self, tmp_path):
        result = call("dump", tmp_path / "missing.pplx", "--json")
        assert result.exit_code == 4
        assert json.loads(result.stdout)["error"]["class"] == "DumpError"


class TestField:
    @pytest.mark.parametrize(
        ("path", "shown"),
        [
            ("manifest.id", "0123456789abcdef"),
            ("failures[-1].message", "no block left"),
            ("requests[0].sampling.seed", "7"),
            ("requests[0].finish_step", "null"),
            ("steps[0].completed", "true"),
            ("requests[0].stream", "false"),
        ],
    )
    def test_values(self, small, path, shown):
        assert call("dump", small, "--field", path).stdout.strip() == shown

    def test_messages_and_lists(self, small):
        assert json.loads(call("dump", small, "--field", "kv.tables[0]").stdout)["blocks"] == [0, 1]
        assert len(json.loads(call("dump", small, "--field", "requests").stdout)) == 2
        assert json.loads(call("dump", small, "--field", "requests[0].output_token_ids").stdout) == [5]

    def test_a_typo_names_the_nearest(self, small):
        result = call("dump", small, "--field", "requests[0].sampling.sead")
        assert result.exit_code == 2
        assert "requests[0].sampling.seed" in result.stderr


class TestRaw:
    def test_the_blob_down_to_active_model(self, small):
        out = call("dump", small, "--raw").stdout
        assert "magic" in out.splitlines()[0]
        assert "0x0009 (v0.9.3)" in out.splitlines()[1]
        line = next(line for line in out.splitlines() if "active_model" in line)
        offset, length = map(int, line.split()[:2])
        assert small.read_bytes()[offset : offset + length].endswith(b"smollm2-135m")
        assert '"smollm2-135m"' in line
        assert "5 of 5 seals hold" in out

    def test_a_damaged_file_is_shown_and_blamed(self, small, tmp_path):
        data = bytearray(small.read_bytes())
        data[20] ^= 1
        (tmp_path / "bad.pplx").write_bytes(data)
        result = call("dump", tmp_path / "bad.pplx", "--raw")
        assert result.exit_code == 4
        assert "active_model" in result.stdout
        assert "4 of 5 seals hold" in result.stdout
        assert "not what was sealed" in result.stderr

    def test_a_torn_file_as_json(self, small, tmp_path):
        (tmp_path / "torn.pplx").write_bytes(small.read_bytes()[:-20])
        result = call("dump", tmp_path / "torn.pplx", "--raw", "--json")
        assert result.exit_code == 4
        document = json.loads(result.stdout)
        assert document["problem"]["class"] == "TornDump"
        assert document["seals"] == {"total": 4, "good": 4}
        assert document["nodes"][0]["name"] == "magic"


class TestDamaged:
    @pytest.fixture
    def torn(self, small, tmp_path):
        (tmp_path / "torn.pplx").write_bytes(small.read_bytes()[:-20])
        return tmp_path / "torn.pplx"

    def test_a_torn_dump_says_what_to_do(self, torn):
        result = call("dump", torn)
        assert result.exit_code == 4
        assert f"pplx-state recover {torn} -o NEW.pplx" in result.stderr

    def test_salvage_shows_what_is_left_and_says_that_it_is_not_all(self, torn):
        result = call("dump", torn, "--salvage")
        assert result.exit_code == 0
        assert "DAMAGED: verified up to byte" in result.stdout.splitlines()[1]
        assert "Request req-b" in result.stdout
        document = json.loads(call("dump", torn, "--salvage", "--json").stdout)
        assert document["file"]["torn"]["offset"] > 0

    def test_a_pickle(self, tmp_path):
        (tmp_path / "a.pkl").write_bytes(b"\x80\x04K\x01.")
        result = call("dump", tmp_path / "a.pkl")
        assert result.exit_code == 4
        assert "Python pickle" in result.stderr


def test_raw_ends_where_nobody_reads_on(tmp_path, monkeypatch):
    """Two kinds of field in turn are never a run of one kind, so that alone would show every one of them."""
    monkeypatch.setattr(state_dump, "MAX_NODES", 50)
    path = tmp_path / "a.pplx"
    path.write_bytes(seal_up(manifest_field(), (field(6, b"") + field(8, b"")) * 100))
    assert "more after these 50 fields" in call("dump", path, "--raw").output
    document = json.loads(call("dump", path, "--raw", "--json").output)
    assert (len(document["nodes"]), document["cut"]) == (50, True)
    document = json.loads(call("dump", path, "--raw", "--json", "--all").output)
    assert (len(document["nodes"]) > 200, document["cut"]) == (True, False)


def test_an_empty_path_is_not_the_whole_dump(small):
    assert call("dump", small, "--field", "", "--json").exit_code == 2


def test_the_time_of_the_failure_is_told_beside_that_of_the_writing():
    path = FIXTURES / "kv-overflow" / "dump.pplx"
    with open_dump(path) as dump:
        manifest, failure = dump.state.manifest, dump.state.failures[-1]
        at = datetime.fromtimestamp((failure.time_ns + manifest.wall_minus_monotonic_ns) / 1e9, UTC)
    lines = call("dump", path).stdout.splitlines()
    assert f"failed {at:%Y-%m-%d %H:%M:%S} UTC" in [" ".join(line.split()) for line in lines]
