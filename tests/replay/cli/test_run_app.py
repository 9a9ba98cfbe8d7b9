"""``pplx-replay run --target app=...`` as a person or a script calls it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dumps.record.program import recording
from replay.cli.batch import batch
from replay.cli.run import run as run_command
from tests.fixture_folders import FIXTURES
from tests.small_programs import SmallPrograms, says

PROGRAM = """
from dumps.record.seams.tools import tool

@tool
def look_up(url):
    return get(url + "/a")

def main(url):
    print("asking\\x1b[31m red")
    return parse(look_up(url))

def parse(text):
    raise ValueError(f"no number: {text!r}")

class Agent:
    @staticmethod
    def mended(url):
        return look_up(url)

    def method(self, url):
        return look_up(url)

def renamed(url):
    return read(look_up(url))

def read(text):
    raise ValueError(f"no number: {text!r}")

def dies(url):
    os._exit(3)

def another(url):
    return "fine"

def asks_on(url):
    return look_up(url), get(url + "/new")

def reads_on(url):
    return look_up(url), open("/nowhere/at/all")

def more(url):
    return get(url + "/new")

def handle(request):
    return "answered by a handler"

def breaks(request):
    raise LookupError("no such page")

def spins(url):
    print("spinning", flush=True)
    while True:
        pass
"""


@pytest.fixture(scope="module")
def dump(programs: SmallPrograms) -> Path:
    programs.write(PROGRAM, name="small_cli")
    return programs.record_served("small_cli", says("A"))[0]


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def replay(capsys):
    """The command itself, in this process; its workers are real."""

    def replay(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as left:
            run_command.main([str(argument) for argument in arguments])
        assert isinstance(left.value.code, int)
        done = Done(left.value.code, *capsys.readouterr())
        assert "our bug" not in done.stderr
        return done

    return replay


@pytest.fixture
def run(programs, dump, replay):
    def run(entry: str, *arguments: object) -> Any:
        return replay(dump, "--target", f"app={entry}", "--app-path", programs.folder, *arguments)

    return run


def command(dump: Path, entry: str, *arguments: object) -> list[str]:
    words = [sys.executable, "-m", "replay.cli", "replay", "run", dump, "--target", f"app={entry}", *arguments]
    return [str(word) for word in words]


def test_people_read_the_verdict_and_what_the_program_printed_beside_it(run):
    done = run("small_cli:main", "--answers", "recorded")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "reproduced: the same failure came back"
    assert "program              small_cli:main: it raised an exception" in done.stdout
    assert "raised in            small_cli.py:parse" in done.stdout
    assert "at call 2" in done.stdout
    assert "asking" not in done.stdout
    assert "| asking\\x1b[31m red" in done.stderr


def test_json_is_one_document_whatever_the_program_prints(run):
    done = run("small_cli:main", "--json", "--repeat", "2")
    report = json.loads(done.stdout)
    assert (report["verdict"], report["repeat"]) == ("reproduced", {"n": 2, "reproduced": 2})
    assert report["target"] == "app=small_cli:main"
    assert report["mode"] == "strict"
    assert report["output"] == "asking\x1b[31m red\n"
    assert report["signature"]["location"]["step"] == 2
    assert "landlock" in report["environment"]["isolation"]["grade"] or report["environment"]["isolation"]["missing"]


@pytest.mark.parametrize(
    ("entry", "arguments", "code", "says_"),
    [
        ("small_cli:Agent.mended", (), 10, "not-reproduced: the replay ran to its end"),
        ("small_cli:Agent.mended", ("--expect", "not-reproduced"), 0, "not-reproduced"),
        ("small_cli:Agent.mended", ("--bisect",), 0, "not-reproduced"),
        ("small_cli:main", ("--bisect",), 1, "reproduced"),
        ("small_cli:another", (), 20, "asked for nothing of what was recorded: is it the right entry?"),
        ("small_cli:another", ("--bisect",), 125, "inconclusive (nothing-asked)"),
        ("small_cli:renamed", (), 11, "raised in small_cli.py:read instead of small_cli.py:parse: renamed?"),
        ("small_cli:asks_on", (), 10, "asks_on: it lived past the end of the record, where nothing answers any more"),
        ("small_cli:asks_on", (), 10, "not-reproduced: the program lived past the end of the record without this"),
        ("small_cli:more", (), 12, "diverged at"),
        ("small_cli:main", ("--set", 'tool.tool-1.result="B"'), 11, "no number: 'B'"),
        ("small_cli:more", ("--fork", "--handlers", "small_cli:handle"), 10, "handlers answered what was not recorded"),
    ],
)
def test_verdicts_and_their_exit_codes(run, entry, arguments, code, says_):
    done = run(entry, "--answers", "recorded", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert says_ in done.stdout


def test_a_file_that_was_asked_for_past_the_record_is_named_once_and_is_no_request(run):
    done = run("small_cli:reads_on", "--answers", "recorded")
    assert "what it asked next, nobody recorded: open of '/nowhere/at/all'" in done.stdout
    assert done.stdout.count("/nowhere/at/all") == 1
    assert "1 file call that nobody recorded" in done.stdout


@pytest.mark.parametrize(
    ("entry", "arguments", "says_"),
    [
        ("small_cli:main", ("--kernels", "stock"), "--kernels changes nothing in --target app"),
        ("small_cli:main", ("--kv", "restore"), "--kv changes nothing in --target app"),
        ("small_cli:main", ("--set", "tool.tool-1.reslut=1"), "only tool.ID.result"),
        ("small_cli:main", ("--set", "tool.tool-1.result={a}"), "wants JSON"),
        ("small_cli:main", ("--fork",), "--handlers MODULE:FUNCTION"),
        ("small_cli:main", ("--handlers", "small_cli:handle"), "add --fork"),
        ("small_cli:main", ("--answers", "recorded", "--model", "."), "--model changes nothing"),
        ("small_cli", (), "names no callable"),
    ],
)
def test_what_is_refused_before_anything_runs(run, entry, arguments, says_):
    done = run(entry, *arguments)
    assert done.returncode == 2
    assert says_ in done.stderr
    assert "opening the dump" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("entry", "arguments", "says_"),
    [
        ("small_nowhere:main", (), "there is no module small_nowhere"),
        ("small_cli:man", (), "it has main"),
        ("small_cli:Agent.method", (), "do not fit: missing a required argument: 'self'"),
        ("small_cli:main", ("--set", "tool.tol-1.result=1"), "it has tool-1"),
        ("small_cli:main", ("--fork", "--handlers", "small_cli:hand"), "handlers: small_cli has no hand"),
    ],
)
def test_what_is_refused_once_the_program_is_looked_at(run, entry, arguments, says_):
    done = run(entry, *arguments)
    assert done.returncode == 2
    assert says_ in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_raises_shows_its_traceback_and_skips_a_bisection(run, programs):
    (programs.folder / "small_raises.py").write_text("LIMITS = {}\nLIMIT = LIMITS['most']\n")
    done = run("small_raises:main", "--bisect")
    assert done.returncode == 125
    assert "importing small_raises raises KeyError: 'most'" in done.stderr
    assert "LIMIT = LIMITS['most']" in done.stderr
    document = json.loads(run("small_raises:main", "--json").stdout)
    assert document["error"]["class"] == "ProgramNotLoaded"
    assert "small_raises.py" in document["error"]["evidence"]


def test_a_handler_that_raises_is_told_apart_from_the_program(run):
    done = run("small_cli:more", "--fork", "--handlers", "small_cli:breaks", "--answers", "recorded")
    assert done.returncode == 2
    assert "the fork handler raised LookupError for GET" in done.stderr
    assert 'raise LookupError("no such page")' in done.stderr


def test_the_program_is_looked_for_where_one_stands(programs, dump):
    words = command(dump, "small_cli:main", "--answers", "recorded")
    root = str(Path(__file__).parents[3])
    environment = os.environ | {"PYTHONPATH": root}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=programs.folder, env=environment)
    assert done.returncode == 0, done.stderr


def test_a_budget_is_a_budget_and_says_where_the_program_stood(run):
    began = time.monotonic()
    done = run("small_cli:spins", "--timeout", "500ms", "--answers", "recorded")
    assert time.monotonic() - began < 20
    assert done.returncode == 21
    told, _, evidence = done.stderr.partition("raise --timeout")
    assert "the program took longer than 0.5 s; it stood in small_cli.py:" in told
    assert told.rstrip().endswith(" spins")
    assert "ended at" not in told
    assert "where it stood:" in evidence


def test_a_program_that_ends_its_process_is_not_spoken_of_in_steps(run):
    done = run("small_cli:dies", "--answers", "recorded")
    assert "the program ended its process by os._exit with status 3, in small_cli.py:" in done.stdout
    assert "seen                 process-death in small_cli.py:dies at call 0" in done.stdout
    assert "it left by sys.exit or os._exit" in done.stdout


def test_runs_are_numbered(run):
    done = run("small_cli:main", "--answers", "recorded", "--repeat", "2")
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("running the program") and line.endswith("...")] == [
        "running the program, run 1 of 2 ...",
        "running the program, run 2 of 2 ...",
    ]
    assert "run 1" not in run("small_cli:main", "--answers", "recorded").stderr


def test_a_program_whose_arguments_are_not_recorded_is_told_that_defaults_were_used(programs, replay):
    name = programs.write("""
        from dumps.record.seams.tools import tool

        @tool
        def ask():
            return 1

        def main(times=1):
            raise ValueError(times * ask())
    """)
    folder = programs.folder / f"{name}-alone"
    with programs.importable(), contextlib.suppress(ValueError), recording(folder, level="full"):
        programs.module(name).main()
    (path,) = folder.glob("*.pplx")
    done = replay(path, "--target", f"app={name}:main", "--app-path", programs.folder, "--answers", "recorded")
    assert done.returncode == 0, done.stderr
    assert "the recording says nothing of arguments; defaults were used" in done.stdout


def test_ctrl_c_leaves_no_worker_behind(programs, dump):
    words = command(dump, "small_cli:spins", "--answers", "recorded", "--app-path", programs.folder)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("running the program"):
            break
    children = _children(process.pid)
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    process.stderr.close()


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(entry.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ("--answers", "recorded"),
        ("--fork",),
        ("--handlers", "m:f"),
        ("--app-path", "."),
    ],
)
def test_options_of_a_program_are_refused_elsewhere(replay, arguments: tuple[Any, ...]):
    done = replay(FIXTURES / "kv-overflow" / "dump.pplx", *arguments)
    assert done.returncode == 2
    assert "it is for --target app=MODULE:CALLABLE" in done.stderr


def test_an_engines_target_says_what_a_programs_dump_needs(replay, dump):
    done = replay(dump, "--target", "schedule")
    assert done.returncode == 2
    assert "--target app=small_cli:main" in done.stderr


def test_an_engines_dump_holds_no_program(replay):
    done = replay(FIXTURES / "kv-overflow" / "dump.pplx", "--target", "app=small_cli:main")
    assert done.returncode == 20
    assert "the dump holds no recorded program" in done.stdout


def test_a_batch_names_the_dumps_of_programs_and_goes_on(capsys, dump, tmp_path):
    for name in ("1-program.pplx", "3-program.pplx"):
        (tmp_path / name).write_bytes(dump.read_bytes())
    (tmp_path / "2-engine.pplx").write_bytes((FIXTURES / "kv-overflow" / "dump.pplx").read_bytes())
    with pytest.raises(SystemExit) as left:
        batch.main([str(tmp_path), "--target", "schedule"])
    said = capsys.readouterr()
    assert left.value.code == 0
    assert "2 left out: they are of programs" in said.err
    for name in ("1-program.pplx", "3-program.pplx"):
        assert f"- {name}: the dump is that of a program" in said.out
    assert "run your program in its recorded world: pplx-replay run DUMP --target app=small_cli:main" in said.out
    report = json.loads((tmp_path / "reports" / "2-engine.json").read_text())
    assert report["verdict"] == "reproduced"


def test_a_batch_runs_no_program(capsys, tmp_path):
    for option in (("--target", "app=small_cli:main"), ("--fork",), ("--app-path", ".")):
        with pytest.raises(SystemExit) as left:
            batch.main([str(tmp_path), *option])
        assert left.value.code == 2
    assert "MODULE" not in capsys.readouterr().err
