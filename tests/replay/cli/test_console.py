from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from dumps.errors import CorruptDump
from replay.cli import console
from replay.cli.progress import progress
from replay.errors import BudgetSpent, ModelUnavailable, ReplayError, UnsupportedModel, UsageError

ROOT = Path(__file__).parents[3]
EVIL = "\x1b]0;owned\x07\x1b[31m\u202e[bold]x[/bold]"


def raising(error: BaseException) -> console.Command:
    @console.command("probe")
    @console.json_option
    def probe(as_json: bool) -> None:
        raise error

    return probe


def run(command: click.Command, *arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        command.main(list(arguments), prog_name="probe")
    assert isinstance(left.value.code, int)
    return left.value.code


def python(code: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CorruptDump("seal 2 does not match", offset=4711, remedy="Fetch it again."), 4),
        (UsageError("no such key", remedy="Did you mean kv.num_blocks?"), 2),
        (click.UsageError("no such option"), 2),
        (click.BadParameter("not a number"), 2),
        (click.FileError("x.pplx", "unreadable"), 2),
        (ModelUnavailable("no weights", remedy="Pull them."), 20),
        (UnsupportedModel("MambaForCausalLM is not tested"), 20),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 20),
        (BudgetSpent("5 s are over"), 21),
        (ReplayError("the worker died"), 70),
        (PermissionError(13, "Permission denied", "x.pplx"), 2),
        (ZeroDivisionError("division by zero"), 70),
        (EOFError("short"), 70),
        (BrokenPipeError(32, "Broken pipe"), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_has_its_exit_code_and_one_json_document(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(raising(error)) == code
    people = capsys.readouterr()
    assert people.out == ""
    assert people.err.strip()
    assert "Traceback" not in people.err

    assert run(raising(error), "--json") == code
    machine = capsys.readouterr()
    document = json.loads(machine.out)
    assert document.keys() == {"error"}
    assert document["error"].keys() == {"class", "message", "remedy", "exit_code"}
    assert document["error"]["exit_code"] == code
    assert machine.err == ""


def test_message_offset_and_remedy_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(CorruptDump("seal 2 does not match", offset=4711, remedy="Fetch it again.")))
    assert capsys.readouterr().err == "error: seal 2 does not match (at byte 4711)\nFetch it again.\n"


@pytest.mark.parametrize("make", [CorruptDump, ModelUnavailable, click.UsageError, ValueError])
def test_text_of_a_dump_cannot_drive_the_terminal(
    make: Callable[[str], Exception],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for arguments in ((), ("--json",)):
        run(raising(make(EVIL)), *arguments)
        captured = capsys.readouterr()
        shown = captured.out + captured.err
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown
        assert "[bold]x[/bold]" in shown


def test_a_long_message_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(CorruptDump("x\n" * 10_000 + "y" * 1_000_000)))
    assert len(capsys.readouterr().err) < 5000


def test_our_own_bug_leaves_a_private_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("PPLX_DEBUG", raising=False)
    run(raising(ZeroDivisionError(f"by zero {EVIL}")))
    assert "this is our bug" in capsys.readouterr().err
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "raise error" in path.read_text()
    assert "\x1b" not in path.read_text()


def test_debug_level_two_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PPLX_DEBUG", "2")
    run(raising(ZeroDivisionError("by zero")))
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_returned_number_is_the_exit_code() -> None:
    @console.group()
    def top() -> None: ...

    @top.command()
    def ten() -> int:
        return 10

    @top.command()
    @click.pass_context
    def twelve(ctx: click.Context) -> None:
        ctx.exit(12)

    @top.command()
    def nothing() -> None: ...

    assert [run(top, name) for name in ("ten", "twelve", "nothing", "--help")] == [10, 12, 0, 0]


def test_an_error_below_a_group_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    @console.group()
    def top() -> None: ...

    top.add_command(raising(CorruptDump("torn")))
    assert run(top, "probe") == 4
    assert capsys.readouterr().err.count("torn") == 1


def test_without_standalone_mode_the_error_itself_is_raised() -> None:
    with pytest.raises(CorruptDump):
        raising(CorruptDump("torn")).main([], standalone_mode=False)


def test_a_reader_that_goes_ends_the_command_quietly() -> None:
    code = (
        "from replay.cli import console\n"
        "@console.command()\n"
        "def many():\n"
        "    for n in range(10**7): console.stdout().print(n)\n"
        "many()\n"
    )
    with python(code) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.wait(60) == console.EXIT_PIPE_CLOSED
        assert process.stderr.read() == ""


def test_a_broken_pipe_elsewhere_is_not_mistaken_for_it(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "from replay.cli import console\n"
        "@console.command()\n"
        "def other():\n"
        "    read, write = os.pipe()\n"
        "    os.close(read)\n"
        "    os.write(write, b'x')\n"
        "other()\n"
    )
    with python(code) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (70, "")
    assert "this is our bug" in err
    Path(err.rsplit(" ", 1)[-1].strip().removesuffix(".")).unlink(missing_ok=True)


def test_ctrl_c() -> None:
    code = (
        "from replay.cli import console\n"
        "import time\n"
        "@console.command()\n"
        "def wait():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "wait()\n"
    )
    with python(code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, "", "interrupted")


def on_a_terminal(code: str, **environment: str) -> str:
    """What a program writes when stdout and stderr are a terminal."""
    ours, theirs = pty.openpty()
    keep = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    subprocess.run(
        [sys.executable, "-c", code],
        stdout=theirs,
        stderr=theirs,
        env={**keep, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **environment},
        timeout=60,
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:
        pass  # Linux reports a terminal whose other end is closed as EIO
    os.close(ours)
    return written.decode()


RED = "from replay.cli import console; console.stdout().print('word [b]7[/b]', style='red')"


def test_colour_only_on_a_terminal_and_never_with_no_color() -> None:
    assert "\x1b[31m" in on_a_terminal(RED)
    assert "\x1b[31m" not in on_a_terminal(RED, NO_COLOR="1")
    with python(RED) as process:
        assert process.communicate(timeout=60)[0] == "word [b]7[/b]\n"


def test_long_lines_stay_whole_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    console.stdout().print("word " * 200)
    assert capsys.readouterr().out == "word " * 200 + "\n"


def test_json_is_ascii_and_refuses_nan(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"text": EVIL + "é"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"text": EVIL + "é"}
    with pytest.raises(ValueError, match="Out of range"):
        console.print_json(float("nan"))
    assert capsys.readouterr().out == ""


def test_progress_in_a_pipe_is_a_line_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as update:
        for done in range(1000):
            update("loading", done, 1000)
        update("stepping", 1, 2)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0::2] == ["loading ...", "stepping ..."]
    assert [line.split(" in ")[0] for line in lines[1::2]] == ["loading: done", "stepping: done"]


def test_a_long_stage_says_in_a_pipe_how_far_it_is_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1000))
    monkeypatch.setattr("replay.cli.progress.time.monotonic", lambda: float(next(seconds)))
    with progress() as update:
        for done in range(0, 13_000, 1000):  # a second each
            update("fast-forward (tokens)", done, 12_000)
        for done in range(7):
            update("steps beyond the record", done)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "fast-forward (tokens) ...",
        "fast-forward (tokens): 5,000 of 12,000",
        "fast-forward (tokens): 10,000 of 12,000",
        "fast-forward (tokens): done in 14.0 s",
        "steps beyond the record ...",
        "steps beyond the record: 4",
        "steps beyond the record: done in 8.0 s",
    ]


def test_progress_of_bytes_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.cli.progress.LINE_EVERY_S", 0.0)
    with progress(in_bytes=True) as update:
        update("pulling", 0, 94_000_000)
        update("pulling", 47_000_000, 94_000_000)
    assert "pulling: 47.0 MB of 94.0 MB" in capsys.readouterr().err.splitlines()


def test_progress_does_not_claim_that_failed_work_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    def failing() -> None:
        with progress() as update:
            update("loading", 1, 2)
            raise ReplayError("no")

    with pytest.raises(ReplayError):
        failing()
    assert capsys.readouterr().err == "loading ...\n"


def test_progress_on_a_terminal_is_a_bar() -> None:
    code = (
        "from replay.cli.progress import progress\n"
        "with progress() as update:\n"
        "    update('loading', 1, 2)\n"
        "    update('stepping', 0, None)\n"
    )
    shown = on_a_terminal(code, COLUMNS="100")
    assert "loading" in shown
    assert "2/2" in shown


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize("arguments", ["", "--json"])
def test_a_closed_output_changes_no_exit_code(redirect: str, arguments: str) -> None:
    code = (
        "from dumps.errors import CorruptDump; from tests.replay.cli.test_console import raising; "
        "raising(CorruptDump('x')).main()"
    )
    command = f'"{sys.executable}" -c "{code}" {arguments} {redirect}'
    done = subprocess.run(command, shell=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 4


def test_a_full_disk_is_not_our_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(raising(OSError(28, "No space left on device"))) == 70
    shown = capsys.readouterr().err
    assert "No space left" in shown
    assert "our bug" not in shown
