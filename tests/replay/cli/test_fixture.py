"""``pplx-replay fixture`` as a person or a script calls it: add, check, list, exit codes, JSON, GitHub, Ctrl-C."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.cli.console import stdout
from replay.cli.fixture_view import Checked, exit_code_of, show
from replay.cli.groups import replay
from replay.fixtures.check import Status, check_replay
from replay.fixtures.document import load_fixture
from replay.fixtures.folder import fixtures_in
from tests.fixture_folders import FIXTURES
from tests.loopback import Loopback
from tests.small_programs import SmallPrograms, says

OVERFLOW = FIXTURES / "kv-overflow" / "dump.pplx"
SCHEDULE = ("--target", "schedule")
GONE = (*SCHEDULE, "--set", "kv.num_blocks=160")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """The command, called in an empty folder; `Done`."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as ended:
            replay.main(["fixture", *map(str, arguments)], prog_name="pplx-replay")
        shown = capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    return call


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "fixtures"
    for name, arguments in (("cut", SCHEDULE), ("mended", (*GONE, "--state", "fixed"))):
        with pytest.raises(SystemExit) as ended:
            replay.main(["fixture", "add", str(OVERFLOW), "--name", name, "--folder", str(folder), *arguments])
        assert not ended.value.code
    return folder


@pytest.fixture
def two(run, made, tmp_path):
    """A folder with an open fixture and a fixed one, both made by `add`."""
    shutil.copytree(made, tmp_path / "fixtures")
    return tmp_path / "fixtures"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "fixture.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_add_makes_what_check_finds_right_and_list_shows(run, two):
    assert json.loads((two / "mended" / "fixture.json").read_text())["replays"] == [
        {"options": {"target": "schedule", "set": {"kv.num_blocks": 160}}}
    ]
    checked = run("check")
    assert checked.code == 0
    assert [line.split() for line in checked.out.splitlines()[1:]] == [
        ["cut", "open", "target=schedule", "reproduced", "reproduced", *checked.out.splitlines()[1].split()[-2:]],
        [
            *("mended", "fixed", "target=schedule,kv.num_blocks=160", "not-reproduced", "not-reproduced"),
            *checked.out.splitlines()[2].split()[-2:],
        ],
    ]
    assert "2 passed in" in checked.err
    listed = run("list")
    assert [line.split()[:4] for line in listed.out.splitlines()[1:]] == [
        ["cut", "open", "silent-truncation", "(kv-pool-exhausted)"],
        ["mended", "fixed", "silent-truncation", "(kv-pool-exhausted)"],
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (GONE, 10, "Give the options under which it comes back"),
        ((*SCHEDULE, "--state", "fixed"), 13, "Say that it is open"),
        ((*SCHEDULE, "--set", "kv.num_blocks=45"), 20, "inconclusive (record-ends)"),
        (("--target", "endpoint=http://127.0.0.1:1"), 2, "a fixture replays offline"),
        ((*SCHEDULE, "--set", "kv.nonsense=1"), 2, "there is no such setting"),
        ((*SCHEDULE, "--name", "a b"), 2, "Use letters, digits"),
        ((*SCHEDULE, "--timeout", "0.000001"), 21, "raise --timeout"),
    ],
)
def test_what_add_does_not_keep_has_an_exit_code_and_says_why(run, tmp_path, arguments, code, words):
    done = run("add", OVERFLOW, "--name", "cut", *arguments)
    assert (done.code, words in done.out + done.err) == (code, True), done
    assert not list(tmp_path.glob("fixtures/*"))


def test_what_no_replay_needs_is_taken_out_unless_it_is_to_stay(run, tmp_path):
    with open_dump(OVERFLOW) as opened:
        opened.state.manifest.tenant = "acme"
        write_dump(tmp_path / "crash.pplx", opened.state)
    done = run("add", "crash.pplx", "--name", "cut", *SCHEDULE)
    assert (done.code, "manifest.tenant" in done.err) == (0, True), done
    assert b"acme" not in (tmp_path / "fixtures" / "cut" / "dump.pplx").read_bytes()
    assert run("add", "crash.pplx", "--name", "cut", *SCHEDULE, "--force", "--no-redact").code == 0
    assert b"acme" in (tmp_path / "fixtures" / "cut" / "dump.pplx").read_bytes()


def test_a_failed_check_says_what_differs_as_run_prints_it(run, two):
    change(two / "cut", state="fixed")
    (two / "mended" / "fixture.json").write_text('{"state": "closed", "signature": 1, "replays": 1}')
    done = run("check")
    assert done.code == 1
    assert "cut::target=schedule: failed" in done.out
    assert "the failure is fixed and must not come back, and the replay says reproduced" in done.out
    assert "reproduced: the same failure came back" in done.out
    assert "mended: failed" in done.out
    assert "fixtures/mended/fixture.json: name: is missing" in done.out
    assert "1 failed, 1 cannot be read" in done.err
    assert run("list").code == 1
    assert run("check", "mended").code == 1
    assert "\x1b" not in done.out + done.err


def test_json_is_one_document(run, two):
    change(two / "cut", state="fixed")
    done = run("check", "--json")
    document = done.document
    assert (done.code, document["exit_code"], document["interrupted"]) == (1, 1, False)
    cut, mended = document["fixtures"]
    assert (cut["name"], cut["state"], cut["error"]) == ("cut", "fixed", None)
    (replayed,) = cut["replays"]
    assert (replayed["status"], replayed["wanted"], replayed["verdict"]) == ("failed", "not-reproduced", "reproduced")
    assert replayed["report"]["expected_signature"] == replayed["report"]["signature"]
    assert mended["replays"][0]["status"] == "passed"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cuts",), "There are: cut"),
        (("--folder", "nowhere"), "no fixture in"),
        (("--github", "--json"), "give one of them"),
        (("--timeout", "soon"), "not a usable duration"),
    ],
)
def test_usage_errors_are_2_since_a_check_of_nothing_is_not_green(run, two, arguments, words):
    done = run("check", *arguments)
    assert (done.code, words in done.out + done.err) == (2, True), done


def test_without_weights_a_check_fails_unless_that_is_allowed_and_never_passes_with_nothing_checked(
    two, monkeypatch, tmp_path, capsys
):
    for name in ("PPLX_CACHE", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    change(two / "mended", state="open", replays=[{"options": {}}])
    found = [Checked(path=folder, fixture=load_fixture(folder)) for folder in fixtures_in(two)]
    for one in found:
        assert one.fixture is not None
        one.outcomes = [check_replay(one.fixture, one.fixture.replays[0])]
    assert [one.outcomes[0].status for one in found] == [Status.PASSED, Status.INCONCLUSIVE]
    assert exit_code_of(found) == 1
    assert exit_code_of(found, allow_inconclusive=True) == 0
    assert exit_code_of(found[1:], allow_inconclusive=True) == 1
    show(stdout(), found[1:], allow_inconclusive=True)
    assert "nothing was checked" in capsys.readouterr().out
    show(stdout(), found, allow_inconclusive=False)
    shown = capsys.readouterr().out
    assert "mended::as-recorded: inconclusive" in shown
    assert "no weights of smollm2-135m" in shown
    assert "pplx-replay models pull smollm2-135m" in shown


def test_a_program_is_kept_with_the_way_to_its_source(run, tmp_path, monkeypatch):
    programs = SmallPrograms(tmp_path)
    name = programs.write("def main(url):\n    return int(get(url))\n\ndef mended(url):\n    return len(get(url))\n")
    with Loopback(says("no number")) as server:
        dump = programs.record(name, url=server.url)
    program = ("--target", f"app={name}:main", "--answers", "recorded")
    done = run("add", dump, "--name", "no-number", *program)
    assert done.code == 0, done
    document = json.loads((tmp_path / "fixtures" / "no-number" / "fixture.json").read_text())
    assert document["replays"][0]["options"] == {
        "target": f"app={name}:main",
        "answers": "recorded",
        "app_path": ["../.."],
    }
    monkeypatch.chdir("/")
    assert run("check", "--folder", tmp_path / "fixtures").code == 0
    document["replays"][0]["options"]["target"] = f"app={name}:mended"
    (tmp_path / "fixtures" / "no-number" / "fixture.json").write_text(json.dumps(document))
    gone = run("check", "--folder", tmp_path / "fixtures")
    assert gone.code == 1
    assert "the failure is open and must come back, and the replay says not-reproduced" in gone.out


def test_for_github_it_prints_escaped_commands_and_adds_to_the_summary(run, two, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    change(two / "cut", state="fixed")
    done = run("check", "--github")
    assert done.code == 1
    first, *_, end, annotation = done.out.splitlines()
    token = first.removeprefix("::stop-commands::")
    assert (end, len(token)) == (f"::{token}::", 32)
    assert annotation == (
        "::error file=fixtures/cut/fixture.json,title=cut%3A%3Atarget=schedule::"
        "the failure is fixed and must not come back, and the replay says reproduced"
    )
    assert summary.read_text().startswith("before\n### Replay fixtures: 1 failed, 2 replays\n")


def test_ctrl_c_keeps_what_was_checked(run, two):
    slow = {"options": {"target": "schedule", "repeat": 1000}}
    change(two / "mended", state="open", replays=[slow])
    command = [sys.executable, "-m", "replay.cli", "replay", "fixture", "check", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("mended::"):
            time.sleep(0.2)
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    document = json.loads(out)
    assert (process.returncode, document["interrupted"]) == (130, True)
    assert [one["status"] for one in document["fixtures"][0]["replays"]] == ["passed"]
    assert document["fixtures"][1]["replays"] == []


def test_a_fixture_of_what_the_failure_needs(run, tmp_path):
    done = run("add", OVERFLOW, "--name", "small", *SCHEDULE, "--minimise")
    assert done.code == 0
    assert "minimised: 1 request, 3 tokens, 1 block; needs policy truncate" in done.err
    with open_dump(OVERFLOW) as whole, open_dump(tmp_path / "fixtures" / "small" / "dump.pplx") as small:
        assert (len(whole.state.requests), len(small.state.requests)) == (6, 1)
    assert run("check").code == 0
