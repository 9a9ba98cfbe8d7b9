from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from replay.cli import groups, main
from replay.cli.failures import explain
from replay.cli.groups import LazyCommand, LazyGroup

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "transformers", "aiohttp", "google.protobuf", "hypothesis"}


def pplx(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "replay.cli"]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def modules_after(group: str, *arguments: str) -> set[str]:
    """What is imported once a group has answered."""
    code = (
        "import json, sys\n"
        f"from replay.cli.groups import {group}\n"
        "try:\n"
        f"    {group}.main({list(arguments)!r}, prog_name='x')\n"
        "except SystemExit as left:\n"
        "    assert not left.code, left.code\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = pplx(code=code)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def all_lazy() -> list[tuple[str, LazyCommand]]:
    found = []
    for group in (groups.pplx, groups.replay, groups.state):
        found += [(f"{group.name} {name}", lazy) for name, lazy in group.lazy.items()]
    return found


@pytest.mark.parametrize("group", ["pplx", "replay", "state"])
def test_help_of_a_group_imports_nothing_heavy(group: str) -> None:
    assert modules_after(group, "--help") & HEAVY == set()


@pytest.mark.parametrize(("path", "lazy"), all_lazy(), ids=lambda value: value if isinstance(value, str) else "")
def test_each_command_of_the_table_exists_and_shows_examples(path: str, lazy: LazyCommand) -> None:
    command = lazy.load()
    assert command.name == path.split()[-1]
    text = command.help or ""
    assert "Example" in text, "help without an example"
    assert "\b" in text, "examples that click would reflow"
    assert lazy.summary.endswith(".")
    assert len(lazy.summary) <= 80


@pytest.mark.parametrize(
    ("group", "name"),
    [("replay", "run"), ("replay", "models"), ("state", "dump"), ("state", "verify"), ("pplx", "server")],
)
def test_help_of_a_command_does_not_import_torch(group: str, name: str) -> None:
    assert modules_after(group, name, "--help") & {"torch", "transformers"} == set()


def test_a_group_without_a_command_prints_its_help_once() -> None:
    done = pplx("replay", "models")
    assert done.returncode == 2
    assert done.stderr.count("Usage:") == 1
    assert "error" not in done.stderr


def test_help_lists_the_table_in_its_order() -> None:
    done = pplx("replay", "--help")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    listed = [line.split()[0] for line in done.stdout.split("Commands:\n")[1].splitlines() if line[2] != " "]
    assert listed == list(groups.replay.lazy)


def test_no_arguments_shows_the_help() -> None:
    done = pplx("state")
    assert "pplx-state verify" in done.stdout + done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["replay", "rnu", "x.pplx"], "Did you mean run?"),
        (["replya"], "Did you mean replay?"),
        (["verify", "x.pplx"], "Did you mean state verify?"),
        (["state", "recove"], "Did you mean recover?"),
    ],
)
def test_unknown_command_names_the_nearest(arguments: list[str], suggestion: str) -> None:
    done = pplx(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert suggestion in done.stderr
    assert "--help" in done.stderr


def test_unknown_command_with_nothing_near() -> None:
    done = pplx("frobnicate")
    assert done.returncode == 2
    assert "Did you mean" not in done.stderr


def test_usage_error_as_json() -> None:
    done = pplx("replay", "models", "path", "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["class"] == "UsageError"
    assert error["exit_code"] == 2
    assert "Missing argument" in error["message"]
    assert done.stderr == ""


@pytest.mark.parametrize("group", [[], ["replay"], ["state"]])
def test_version(group: list[str]) -> None:
    done = pplx(*group, "--version")
    assert done.returncode == 0
    assert done.stdout.startswith("pplx-replay ")


def test_entry_points_of_the_package_are_here() -> None:
    import tomllib

    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for target in scripts.values():
        module, attribute = target.split(":")
        assert module == "replay.cli.main"
        assert callable(getattr(main, attribute))


def test_server_entry_point_names_itself() -> None:
    done = pplx(code="import sys; sys.argv = ['x', '--help']; from replay.cli.main import server; server()")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: pplx-server ")


@pytest.mark.parametrize(("arguments", "said"), [([], "interrupted\n"), (["--json"], "")])
@pytest.mark.parametrize("entry", ["pplx", "replay", "state", "server"])
def test_ctrl_c_while_modules_are_imported_is_quiet(entry: str, arguments: list[str], said: str) -> None:
    code = (
        "import sys\n"
        f"from replay.cli.main import {entry}\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"{entry}()"
    )
    done = pplx(*arguments, code=code)
    assert (done.returncode, done.stderr) == (130, said)
    if arguments:
        assert json.loads(done.stdout)["error"] == explain(KeyboardInterrupt()).as_json()
    else:
        assert done.stdout == ""


def test_a_target_that_is_no_command_is_an_error() -> None:
    with pytest.raises(TypeError, match="not a click command"):
        LazyCommand("replay.cli.groups:REPLAY_HELP", "x").load()


def test_lazy_and_plain_commands_live_side_by_side() -> None:
    group = LazyGroup(name="g", help="h", lazy={"models": LazyCommand("replay.cli.models:models", "Models.")})
    group.add_command(click.Command("plain", help="Plain."))
    context = click.Context(group)
    assert group.list_commands(context) == ["plain", "models"]
    assert group.get_command(context, "models") is not None
    assert group.get_command(context, "absent") is None


def test_the_server_tells_its_version():
    code = "from replay.cli.main import server\nimport sys\nsys.argv = ['pplx-server', '--version']\nserver()"
    done = pplx(code=code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("pplx-replay ")
