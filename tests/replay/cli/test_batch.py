"""``pplx-replay batch`` as a person or a script calls it: reports, table, JSON, exit codes, a killed worker, Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replay.cli.batch import NOT_SHARED, batch
from replay.cli.run import run as run_command
from replay.isolate.batch import run_batch
from tests.fixture_folders import FIXTURES
from tests.reports import without_times

OVERFLOW = FIXTURES / "kv-overflow" / "dump.pplx"
NAN = FIXTURES / "nan-block" / "dump.pplx"
SCHEDULE = ("--target", "schedule")
MODEL = ("--model", NAN.parent / "model")


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "replay.cli", "replay", name, *map(str, arguments)]


def run(*arguments: object, name: str = "batch") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    return subprocess.run(command(name, *arguments), capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def crashes(tmp_path: Path) -> Path:
    """Two dumps of one failure, one of another, and a file that is no dump."""
    folder = tmp_path / "crashes"
    folder.mkdir()
    for name, source in (("a.pplx", OVERFLOW), ("b.pplx", OVERFLOW), ("nan.pplx", NAN)):
        (folder / name).write_bytes(source.read_bytes())
    (folder / "notes.txt").write_text("not a dump")
    return folder


def test_each_dump_gets_the_report_that_run_gives(crashes):
    done = run(crashes, *SCHEDULE)
    assert done.returncode == 20, done.stderr
    assert sorted(path.name for path in (crashes / "reports").iterdir()) == ["a.json", "b.json", "nan.json"]
    for name in ("a", "nan"):
        alone = run(crashes / f"{name}.pplx", *SCHEDULE, "--json", name="run")
        report = json.loads((crashes / "reports" / f"{name}.json").read_text())
        assert without_times(report) == without_times(json.loads(alone.stdout))
    assert stat.S_IMODE((crashes / "reports" / "a.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((crashes / "reports").stat().st_mode) == 0o700


def test_with_the_model_in_one_worker(tmp_path):
    """A NaN in the recorded KV of one dump, beside a copy of that dump in every step."""
    reports = nan_twice(tmp_path)
    assert without_times(reports[0]) == without_times(reports[1])
    assert reports[0]["verdict"] == "reproduced"
    assert reports[0]["failure"]["non_finite"]["where"] == "kv-cache"
    assert reports[0]["requests"][0]["logits_digest"]
    assert reports[0]["environment"]["isolation"]["grade"].startswith("audit-hook")


@pytest.mark.long
def test_with_the_model_the_report_is_that_of_run_too(tmp_path):
    alone = json.loads(run(NAN, *MODEL, "--json", name="run").stdout)
    assert [without_times(report) for report in nan_twice(tmp_path)] == [without_times(alone)] * 2


def nan_twice(folder: Path) -> list[dict[str, Any]]:
    for name in ("one.pplx", "two.pplx"):
        (folder / name).write_bytes(NAN.read_bytes())
    done = run(folder, *MODEL, "--json")
    assert done.returncode == 0, done.stderr
    return [entry["report"] for entry in json.loads(done.stdout)["dumps"]]


def test_the_table_has_a_line_for_each_kind_of_end_and_is_plain_in_a_pipe(crashes):
    (crashes / "bad.pplx").write_bytes(b"PPLX\x00\x09garbage")
    done = run(crashes, *SCHEDULE)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["verdict", "count", "signature", "dumps", "first", "divergence"]
    assert lines[1].split() == ["reproduced", "2", "silent-truncation", "(kv-pool-exhausted)", "a.pplx,", "b.pplx", "-"]
    assert any(line.startswith("inconclusive (needs-inference)") and "nan.pplx" in line for line in lines)
    assert any(line.startswith("- bad.pplx: ") for line in lines)
    assert "\x1b" not in done.stdout + done.stderr
    assert "4 of 4 dumps done" in done.stderr
    assert str(crashes / "reports") in done.stderr
    assert done.returncode == 4


def test_json_is_one_document_with_every_dump_in_order(crashes):
    (crashes / "bad.pplx").write_bytes(b"PPLX\x00\x09garbage")
    done = run(crashes, *SCHEDULE, "--json")
    document = json.loads(done.stdout)
    assert (document["exit_code"], done.returncode, document["interrupted"]) == (4, 4, False)
    assert [Path(entry["path"]).name for entry in document["dumps"]] == ["a.pplx", "b.pplx", "bad.pplx", "nan.pplx"]
    bad = document["dumps"][2]
    assert (bad["report"], bad["error"]["exit_code"]) == (None, 4)
    assert json.loads(Path(bad["report_file"]).read_text())["error"]["class"] == bad["error"]["class"]
    for entry in (document["dumps"][0], document["dumps"][3]):
        assert json.loads(Path(entry["report_file"]).read_text()) == entry["report"]
    assert [group["count"] for group in document["groups"]] == [2, 1, 1]
    assert document["groups"][0]["outcome"] == "reproduced"


@pytest.mark.parametrize(
    ("names", "arguments", "code"),
    [
        (("a", "b"), (), 0),
        (("a", "b", "nan"), (), 20),
        (("a", "b"), ("--expect", "not-reproduced"), 13),
        (("a", "b"), ("--expect", "not-reproduced", "--set", "kv.num_blocks=160"), 0),
        (("a", "b"), ("--set", "kv.num_blocks=160"), 10),
        (("nan",), ("--expect", "inconclusive"), 0),
        (("a",), ("--timeout", "0.000001"), 21),
        (("a",), ("--set", "kv.nonsense=1"), 2),
        (("a",), ("--at-once", "0"), 2),
        (("absent",), (), 2),
    ],
)
def test_exit_codes(crashes, names, arguments, code):
    done = run(*(crashes / f"{name}.pplx" for name in names), *SCHEDULE, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_dumps_of_programs_in_a_folder_are_left_out(crashes, tmp_path):
    program = FIXTURES / "tool-parse" / "dump.pplx"
    (crashes / "nan.pplx").unlink()
    (crashes / "agent.pplx").write_bytes(program.read_bytes())
    done = run(crashes, *SCHEDULE)
    assert done.returncode == 0, done.stderr
    assert "left out (of a program)" in done.stdout
    assert "1 left out: they are of programs" in done.stderr
    assert "with an error" not in done.stderr
    document = json.loads(run(crashes, *SCHEDULE, "--json").stdout)
    assert (document["exit_code"], [one["outcome"] for one in document["groups"]]) == (0, ["reproduced", "left-out"])
    assert run(crashes / "agent.pplx", crashes / "a.pplx", *SCHEDULE, "--out", tmp_path / "r").returncode == 2  # named
    for name in ("a.pplx", "b.pplx"):
        (crashes / name).unlink()
    assert run(crashes, *SCHEDULE).returncode == 2  # nothing was replayed


def test_reports_of_ours_are_replaced_and_nothing_else_is(crashes):
    assert run(crashes / "a.pplx", *SCHEDULE).returncode == 0
    report = crashes / "reports" / "a.json"
    before = report.read_bytes()
    assert run(crashes / "a.pplx", *SCHEDULE, "--set", "kv.num_blocks=160").returncode == 10
    assert report.read_bytes() != before
    report.write_text('{"name": "somebody else\'s"}')
    done = run(crashes, *SCHEDULE)
    assert done.returncode == 2
    assert "no report of ours" in done.stderr
    assert "somebody else" in report.read_text()
    assert not (crashes / "reports" / "b.json").exists(), "it was not stopped before it began"


def test_nothing_is_written_through_a_link(crashes, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (crashes / "reports").symlink_to(elsewhere)
    done = run(crashes, *SCHEDULE)
    assert (done.returncode, list(elsewhere.iterdir())) == (2, [])
    assert "is a link" in done.stderr
    assert run(crashes / "a.pplx", *SCHEDULE, "--out", crashes / "reports").returncode == 2
    (crashes / "reports").unlink()
    (crashes / "reports").mkdir()
    (crashes / "reports" / "a.json").symlink_to(elsewhere / "target")
    assert run(crashes / "a.pplx", *SCHEDULE).returncode == 2
    assert list(elsewhere.iterdir()) == []


def test_folders_below_and_dumps_of_one_name(crashes, tmp_path):
    below = crashes / "may" / "1st"
    below.mkdir(parents=True)
    (below / "a.pplx").write_bytes(OVERFLOW.read_bytes())
    assert run(crashes / "may", *SCHEDULE).returncode == 2
    assert run(crashes, *SCHEDULE, "--recursive").returncode == 20
    assert (crashes / "reports" / "may" / "1st" / "a.json").exists()
    out = tmp_path / "out"
    done = run(crashes / "a.pplx", below, crashes / "a.pplx", *SCHEDULE, "--out", out, "--json")
    written = [Path(entry["report_file"]) for entry in json.loads(done.stdout)["dumps"]]
    assert len(set(written)) == 2
    assert sorted(out.iterdir()) == sorted(written)


def test_every_option_of_run_is_there_but_those_for_one_dump():
    ours = {param.name for param in batch.params}
    assert {param.name for param in run_command.params} - ours == NOT_SHARED - {"timeout", "target"}
    assert ours - {param.name for param in run_command.params} == {"paths", "recursive", "out", "at_once"}


def test_the_schedule_and_the_help_need_no_torch(crashes):
    code = (
        "import sys\n"
        "from replay.isolate.batch_job import run\n"
        "from replay.cli.groups import replay\n"
        f"run({{'dumps': [{str(crashes / 'a.pplx')!r}], 'target': 'schedule'}}, lambda event: None)\n"
        "try:\n"
        "    replay.main(['batch', '--help'], prog_name='x')\n"
        "except SystemExit:\n"
        "    raise SystemExit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pplx-replay batch crashes/" in done.stdout


@contextmanager
def in_the_middle(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A batch of many dumps of which the first reports are out, and most are not."""
    folder.mkdir()
    content = OVERFLOW.read_bytes()
    for index in range(MANY):
        (folder / f"{index:03}.pplx").write_bytes(content)
    for _ in range(5):
        process = subprocess.Popen(
            command("batch", folder, *SCHEDULE, "--at-once", 1, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            end = time.monotonic() + 60
            while len(reports(folder)) < 2:
                assert time.monotonic() < end, "no report came"
                time.sleep(0.001)
            if len(reports(folder)) < MANY // 2:
                yield process
                return
        finally:
            process.kill()
            process.communicate()
        shutil.rmtree(folder / "reports")  # on a busy machine we may look too late
    pytest.fail("it was never disturbed in time")


MANY = 300


def reports(folder: Path) -> list[Path]:
    return list((folder / "reports").glob("[0-9]*.json"))


def test_a_killed_worker_takes_no_report_with_it_and_its_open_dumps_run_alone(tmp_path):
    with in_the_middle(tmp_path / "crashes", "--json") as process:
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        output, _ = process.communicate(timeout=100)
    document = json.loads(output)
    assert process.returncode == 0
    alone = [entry for entry in document["dumps"] if entry["alone"]]
    assert 1 <= len(alone) <= 2
    assert all("SIGKILL" in entry["alone"] for entry in alone)
    assert len(reports(tmp_path / "crashes")) == MANY
    kept = [without_times(entry["report"]) for entry in document["dumps"]]
    assert all(report == kept[0] for report in kept)
    assert kept[0]["verdict"] == "reproduced"


def test_a_worker_killed_before_its_first_dump_is_told_once_and_every_dump_still_gets_its_report(tmp_path, capsys):
    for name in "abc":
        (tmp_path / f"{name}.pplx").write_bytes(OVERFLOW.read_bytes())
    with contextlib.suppress(SystemExit):
        batch_of_a_worker_that_dies_at_once(tmp_path)
    shown = capsys.readouterr()
    assert shown.err.count("3 dumps go on one by one, in a process each: ") == 1
    assert shown.out.count("- replayed alone: a.pplx, b.pplx, c.pplx: ") == 1
    assert shown.out.splitlines()[1].split()[:2] == ["reproduced", "3"]


def batch_of_a_worker_that_dies_at_once(folder: Path) -> None:
    deadly = partial(run_batch, batch_function="tests.replay.isolate.batch_jobs:dies_at_once")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replay.cli.batch.run_batch", deadly)
        batch.main([str(folder), *SCHEDULE], prog_name="batch")


def test_ctrl_c_keeps_the_reports_that_are_out_and_says_what_was_done(tmp_path):
    with in_the_middle(tmp_path / "crashes") as process:
        process.send_signal(signal.SIGINT)
        output, notes = process.communicate(timeout=60)
    assert process.returncode == 130
    out = len(reports(tmp_path / "crashes"))
    assert 2 <= out < MANY
    assert f"interrupted: {out} of {MANY} dumps done" in notes
    assert output.splitlines()[1].split()[:2] == ["reproduced", str(out)]
    for path in reports(tmp_path / "crashes"):
        assert json.loads(path.read_text())["verdict"] == "reproduced"
    assert not list((tmp_path / "crashes" / "reports").glob(".*"))
