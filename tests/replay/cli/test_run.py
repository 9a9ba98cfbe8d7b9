"""``pplx-replay run`` as a person or a script calls it: exit codes, JSON, plain text, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from tests.fixture_folders import FIXTURES

OVERFLOW = FIXTURES / "kv-overflow" / "dump.pplx"
NAN = FIXTURES / "nan-block" / "dump.pplx"


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "replay.cli", "replay", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 0),
        (("--expect", "reproduced"), 0),
        (("--expect", "not-reproduced"), 13),
        (("--bisect",), 1),
        (("--set", "kv.num_blocks=160"), 10),
        (("--set", "kv.num_blocks=160", "--expect", "not-reproduced"), 0),
        (("--set", "kv.num_blocks=160", "--bisect"), 0),
        (("--signature", NAN), 20),
        (("--signature", NAN, "--bisect"), 125),
        (("--set", "kv.nonsense=1"), 2),
        (("--set", "kv.nonsense=1", "--bisect"), 125),
        (("--bisect", "--expect", "diverged"), 125),
        (("--bisect", "--tarket", "x"), 125),
        (("--tarket", "x"), 2),
        (("--set", "sampling.temperature=0"), 2),
        (("--set", "kv.num_blocks=45"), 20),
        (("--set", "kv.num_blocks=9999999999"), 2),
        (("--repeat", "0"), 2),
        (("--timeout", "soon"), 2),
        (("--signature", __file__), 2),
    ],
)
def test_exit_codes(arguments, code):
    done = run(OVERFLOW, "--target", "schedule", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_people_read_the_verdict_first_and_plain_text_in_a_pipe():
    done = run(OVERFLOW, "--target", "schedule")
    assert done.stdout.splitlines()[0] == "reproduced: the same failure came back"
    for name in ("kv_cache_used_bytes", "max_kv_cache_bytes", "seq_len_exceeded_at"):
        assert name in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_json_is_one_document_with_the_promised_keys():
    report = json.loads(run(OVERFLOW, "--target", "schedule", "--json", "--full").stdout)
    promised = (
        "schema_version tool_version dump verdict reason_code mode kernels target signature expected_signature match "
        "divergence requests perplexity kv findings fidelity quirks repeat timings environment"
    )
    assert set(promised.split()) <= set(report)
    assert set(report["timings"]) == {"load_s", "rebuild_s", "fast_forward_s", "step_s", "total_s"}
    assert set(report["kv"]) == {"kv_cache_used_bytes", "max_kv_cache_bytes", "seq_len_exceeded_at"}
    request = report["requests"][0]
    assert {"id", "finish_reason", "output_len", "output_sha256", "logits_digest", "output_token_ids"} <= set(request)
    assert len(request["output_token_ids"]) == request["output_len"]
    assert "isolation" in report["environment"]


@pytest.mark.parametrize("content", [b"", b"PPLX", b"PPLX\x00\x09garbage", b"\x80\x04\x95pickle", None])
def test_a_bad_dump_is_4_in_both_forms(tmp_path, content):
    path = tmp_path / "bad.pplx"
    if content is not None:
        path.write_bytes(content)
    done = run(path, "--target", "schedule")
    assert done.returncode == 4
    assert "error:" in done.stderr
    document = json.loads(run(path, "--target", "schedule", "--json").stdout)
    assert document["error"]["exit_code"] == 4
    assert document["error"]["remedy"]


def test_weights_that_are_not_here_are_inconclusive_with_what_to_do(tmp_path):
    nowhere = {"PPLX_CACHE": str(tmp_path), "HF_HUB_CACHE": str(tmp_path), "HF_HOME": str(tmp_path)}
    done = run(OVERFLOW, "--json", **nowhere)
    report = json.loads(done.stdout)
    assert done.returncode == 20
    assert report["reason_code"] == "weights-unavailable"
    assert "pplx-replay models pull smollm2-135m" in report["findings"][0]["remedy"]


def test_forced_steps_are_not_said_to_run_freely_and_no_effort_is_claimed_where_nothing_ran():
    forced = run(NAN, "--mode", "forced", "--model", NAN.parent / "model").stdout
    assert "run on the recorded tokens" in forced
    assert "run freely" not in forced
    nothing = run(NAN, "--device", "cuda", "--model", NAN.parent / "model").stdout
    assert "nothing: the replay could not begin" in nothing
    assert "waiting" not in nothing


def test_a_recorders_file_is_not_taken_for_a_dump_of_another_release(tmp_path):
    path = tmp_path / "flight.ring"
    path.write_bytes(b"PPLXRING" + bytes(100))
    done = run(path)
    assert done.returncode == 4
    assert "flight recorder" in done.stderr
    assert "pplx-state recover" in done.stderr


@pytest.mark.parametrize("option", ["--timeout", "--load-timeout"])
def test_a_bad_duration_names_its_option_once(option):
    done = run(OVERFLOW, option, "soon")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Invalid value for '{option}': not a usable duration: 'soon'" in done.stderr
    assert done.stderr.count(option) == 1


def test_changed_settings_say_what_became_of_the_failing_request():
    done = run(OVERFLOW, "--target", "schedule", "--set", "kv.num_blocks=160")
    line = next(line for line in done.stdout.splitlines() if line.startswith("failing request"))
    assert "max-tokens after 120 answer tokens" in line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kv-wait", "48 blocks wanted, 24 of 24 free; it waits: kv-pool-too-small; nothing runs"),
        ("kv-exhaust", "1 block wanted, 0 of 48 free; held: "),
    ],
)
def test_a_request_without_room_is_shown_with_the_pool_as_it_was(name, said):
    done = run(str(FIXTURES / name / "dump.pplx"), "--target", "schedule")
    line = next(line for line in done.stdout.splitlines() if line.startswith("KV pool"))
    assert said in line
    assert line.count(" tokens)") == (4 if "held" in said else 0)


def test_schedule_refuses_options_that_only_a_model_heeds():
    done = run(OVERFLOW, "--target", "schedule", "--kernels", "stock", "--kv", "recompute")
    assert done.returncode == 2
    assert "--kernels changes nothing" in done.stderr
    assert "kernels, kv" in done.stderr


def test_a_stage_that_failed_is_not_called_done(tmp_path):
    (tmp_path / "bad.pplx").write_bytes(b"no dump")
    done = run(str(tmp_path / "bad.pplx"))
    assert done.returncode == 4
    assert "opening the dump ..." in done.stderr
    assert "done" not in done.stderr


def test_a_failure_of_a_dump_without_one_is_told_as_such(tmp_path):
    with open_dump(OVERFLOW) as dump:
        state = dump.state
    state.ClearField("failures")
    write_dump(tmp_path / "silent.pplx", state)
    done = run(tmp_path / "silent.pplx", "--target", "schedule")
    assert done.returncode == 11
    assert done.stdout.startswith("different-failure: the dump records no failure, and its replay shows one\n")


@pytest.mark.parametrize("command", ["run", "batch"])
def test_a_model_is_named_from_where_its_user_stands(tmp_path, command):
    """The worker stands elsewhere."""
    copy = tmp_path / "dumps" / "dump.pplx"
    copy.parent.mkdir()
    copy.write_bytes(NAN.read_bytes())
    (tmp_path / "weights").symlink_to(NAN.parent / "model")
    words = [sys.executable, "-m", "replay.cli", "replay", command, "dumps/dump.pplx", "--model", "weights", "--json"]
    environment = os.environ | {"PYTHONPATH": str(FIXTURES.parent)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    report = json.loads(done.stdout)
    report = report["dumps"][0]["report"] if command == "batch" else report
    assert report["verdict"] == "reproduced", done.stderr
