"""``pplx-state-sanity-check``: which files it reads, what it prints, exit codes; whether hooks call what there is."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from replay.cli.fixture import check as fixture_check
from replay.cli.fixture import fixture
from replay.cli.state_sanity_check import sanity_check

ROOT = Path(__file__).resolve().parents[3]
BAD = 'from dumps.record.seams.context import frame\nframe("turn", {"a": {1}})\n'


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            sanity_check.main(list(arguments), prog_name="pplx-state-sanity-check")
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return call


def test_the_whole_project_is_checked_but_for_environments_and_hidden_folders(run, tmp_path):
    for name in ("src/a.py", "b.py", ".tox/c.py", "venv/lib/d.py", "node_modules/e.py", "src/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(BAD)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "src" / "other.py").write_text("def this is no Python, and none of our business")
    code, out, err = run("--max-depth=3", "--strict-typing")
    assert code == 1
    assert out.splitlines() == [
        f"{name}:2:21: not-json: JSON cannot hold {{1}}; the dump would keep its repr" for name in ("b.py", "src/a.py")
    ]
    assert "2 findings; 2 keys in 2 modules" in err
    assert run("src/notes.txt")[0] == 1, "a file that is named is read"
    assert run("src/other.py")[0] == 0


def test_json_is_one_document(run, tmp_path):
    (tmp_path / "a.py").write_text(BAD)
    code, out, _ = run("--json")
    document = json.loads(out)
    assert (code, document["modules"], document["keys"]) == (1, 1, 1)
    assert document["findings"][0] | {"message": ""} == {
        "path": "a.py",
        "line": 2,
        "column": 21,
        "code": "not-json",
        "message": "",
    }


@pytest.mark.parametrize("arguments", [("--max-depth=0",), ("nowhere",), ("--strict",)])
def test_usage_errors_are_2(run, arguments):
    assert run(*arguments)[0] == 2


def test_state_of_this_repositorys_own_agent_passes(run):
    code, out, err = run("--strict-typing", str(ROOT / "tests" / "agent"), str(ROOT / "replay"), str(ROOT / "dumps"))
    assert (code, out) == (0, ""), err
    assert " 0 keys" not in err


def test_the_hooks_call_commands_that_are_installed():
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    entries = re.findall(r"entry: (.*)", hooks)
    assert [entry.split()[0] for entry in entries] == ["pplx-state-sanity-check", "pplx-replay"]
    assert {entry.split()[0] for entry in entries} <= set(scripts)
    assert entries[1].split()[1:] == [fixture.name, fixture_check.name]
    assert fixture_check.name in fixture.commands
    options = {option for param in sanity_check.params for option in param.opts}
    assert set(re.findall(r"--[a-z-]+", re.findall(r"args: (.*)", hooks)[0])) <= options
