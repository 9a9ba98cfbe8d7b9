"""The pytest plugin in projects that are not ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.fixture_folders import FIXTURES
from tests.loopback import Loopback
from tests.small_programs import SmallPrograms, says

SCHEDULE = {"options": {"target": "schedule"}}
MORE_BLOCKS = {"options": {"target": "schedule", "set": {"kv.num_blocks": 160}}, "verdict": "not-reproduced"}


class Project:
    """A folder of somebody else, with fixtures of kv-overflow that need no model."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def fixture(self, name: str, *, folder: str = "fixtures", **fields: object) -> Path:
        target = self.root / folder / name
        target.mkdir(parents=True)
        shutil.copyfile(FIXTURES / "kv-overflow" / "dump.pplx", target / "dump.pplx")
        document = json.loads((FIXTURES / "kv-overflow" / "fixture.json").read_text())
        document |= {"name": name, "replays": [SCHEDULE], **fields}
        (target / "fixture.json").write_text(json.dumps(document))
        return target

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def pytest(self, *arguments: str, folder: str = ".", plugins: tuple[str, ...] = ()) -> tuple[int, str]:
        """Exit code and output. Without the plugins that happen to be installed here."""
        named = [part for plugin in ("replay.pytest_plugin", *plugins) for part in ("-p", plugin)]
        command = [sys.executable, "-m", "pytest", "-q", "-rA", *named, *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self.root / folder, env=environment
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def collected(output: str) -> list[str]:
    return [line for line in output.splitlines() if "::" in line and " " not in line]


CUT = "fixtures/cut/fixture.json::target=schedule"
MENDED = "fixtures/mended/fixture.json::target=schedule"


def test_each_replay_is_a_test_and_a_failed_one_says_what_run_says_and_not_our_stack(project):
    project.fixture("cut", replays=[SCHEDULE, MORE_BLOCKS])
    project.fixture("mended", state="fixed")
    code, output = project.pytest()
    assert code == 1
    assert f"PASSED {CUT}" in output
    assert f"PASSED {CUT},kv.num_blocks=160" in output
    failed = output.split("FAILURES")[1].split("short test summary")[0].splitlines()
    assert "mended::target=schedule" in failed[1]
    assert failed[2:5] == [
        "the failure is fixed and must not come back, and the replay says reproduced",
        "",
        "reproduced: the same failure came back",
    ]
    assert "Traceback" not in output
    assert "replay/fixtures/check.py" not in output


def test_they_are_found_where_the_project_looks_for_tests_elsewhere_and_in_no_run_that_names_something_else(project):
    project.fixture("cut")
    project.write("tests/test_own.py", "def test_own(): pass\n")
    project.write("pytest.ini", "[pytest]\ntestpaths = tests\n")
    own = "tests/test_own.py::test_own"
    for arguments, wanted in (
        ((), [CUT, own]),
        (("tests",), [own]),
        (("fixtures",), [CUT]),
        ((".",), [CUT, own]),
        (("--no-replay-fixtures",), [own]),
    ):
        assert sorted(collected(project.pytest("--collect-only", *arguments)[1])) == wanted, arguments


def test_their_folder_can_be_another_one(project):
    project.fixture("cut", folder="golden/replays")
    project.fixture("other")
    project.write("pytest.ini", "[pytest]\nreplay_fixtures = golden/replays\n")
    golden = "golden/replays/cut/fixture.json::target=schedule"
    assert collected(project.pytest("--collect-only")[1]) == [golden]
    named = project.pytest("--collect-only", "--replay-fixtures=../fixtures", folder="golden")[1]
    assert collected(named) == ["fixtures/other/fixture.json::target=schedule"]
    code, output = project.pytest("--replay-fixtures=nowhere")
    assert (code, "there is no folder" in output) == (4, True)


def test_folders_of_other_tools_and_their_python_are_left_alone_and_a_broken_fixture_of_ours_is_not(project):
    project.write("fixtures/users/fixture.json", "[{}]")
    project.write("fixtures/test_data.py", "raise SystemExit('this is data')")
    project.write("tests/test_own.py", "def test_own(): pass\n")
    project.write("pytest.ini", "[pytest]\ntestpaths = tests\n")
    assert project.pytest()[0] == 0
    (project.fixture("lost") / "dump.pplx").unlink()
    code, output = project.pytest()
    assert code == 2
    assert "lost/dump.pplx: there is no dump" in output
    assert "git add --force" in output


def test_several_processes_share_them(project):
    project.fixture("cut", replays=[SCHEDULE, MORE_BLOCKS])
    project.fixture("mended", state="fixed")
    project.write("tests/test_own.py", "def test_own(): pass\n")
    project.write("pytest.ini", "[pytest]\ntestpaths = tests\n")
    code, output = project.pytest("-n2", plugins=("xdist.plugin",))
    assert code == 1
    assert output.count("PASSED ") == 3
    assert f"FAILED {MENDED}" in output
    assert "reproduced: the same failure came back" in output


def test_a_test_of_ones_own_gets_the_dump_and_the_world_of_the_fixture_it_is_marked_with(project):
    programs = SmallPrograms(project.root)
    name = programs.write("def main(url):\n    return int(get(url))\n\ndef mended(url):\n    return len(get(url))\n")
    with Loopback(says("no number")) as server:
        dump = programs.record(name, url=server.url)
        url = server.url
    folder = project.fixture("cut").with_name("program")
    folder.mkdir()
    shutil.copyfile(dump, folder / "dump.pplx")
    (folder / "fixture.json").write_text("{}")
    project.write(
        "test_own.py",
        f"""
        import pytest, time
        from {name} import main, mended

        @pytest.mark.replay("cut")
        def test_dump(replay_dump):
            assert len(replay_dump.state.requests) == 6

        @pytest.mark.replay("program")
        def test_world(replay_env):
            with replay_env:
                assert mended({url!r}) == 9
            assert not replay_env.findings()

        @pytest.mark.replay("program")
        def test_failure(replay_env):
            with replay_env, pytest.raises(ValueError):
                main({url!r})

        @pytest.mark.replay("cut")
        def test_engine(replay_env): ...

        @pytest.mark.replay("cot")
        def test_unknown(replay_dump): ...

        def test_unmarked(replay_dump): ...
        """,
    )
    _, output = project.pytest("--strict-markers", "test_own.py")
    assert "3 passed, 3 errors" in output
    assert "it is that of an engine" in output
    assert "there is no fixture 'cot'" in output
    assert 'say which fixture this test is of: @pytest.mark.replay("NAME")' in output
    assert "pytest_plugin.py" not in output


def test_its_import_brings_pytest_and_nothing_else():
    code = (
        "import pytest, sys; before = set(sys.modules); import replay.pytest_plugin; print(set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.strip("{}' \n") for name in done.stdout.split(",")} == {
        "replay",
        "replay.fixtures",
        "replay.fixtures.folder",
        "replay.pytest_plugin",
    }


@pytest.mark.venv
def test_in_a_fresh_environment_and_an_unrelated_folder_pytest_runs_them_with_no_configuration(base_python, project):
    install = [base_python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pytest"]
    subprocess.run(install, check=True, capture_output=True)
    probe = subprocess.run([base_python, "-c", "import torch"], capture_output=True, check=False)
    assert probe.returncode != 0, "this environment has torch"
    project.fixture("cut", replays=[SCHEDULE, MORE_BLOCKS])
    project.fixture("mended", state="fixed", replays=[MORE_BLOCKS])
    green = in_environment(base_python, project)
    assert green.returncode == 0, green.stdout + green.stderr
    assert "3 passed" in green.stdout
    assert f"PASSED {CUT},kv.num_blocks=160" in green.stdout
    # Without torch, what may be skipped for that is, and what may not fails with what to do.
    project.fixture("allowed", replays=[{"options": {}, "skip_if": ["engine-not-installed"]}])
    project.fixture("strict", replays=[{"options": {}}])
    red = in_environment(base_python, project)
    assert red.returncode == 1
    assert "1 failed, 3 passed, 1 skipped" in red.stdout
    assert "target inference needs" in next(line for line in red.stdout.splitlines() if line.startswith("SKIPPED [1]"))
    assert "python -m pip install 'pplx-replay[engine]'" in red.stdout
    run = [base_python, "-m", "replay.cli", "replay", "run", str(project.root / "fixtures" / "cut" / "dump.pplx")]
    done = subprocess.run([*run, "--json"], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["reason_code"]) == (20, "engine-not-installed")


def in_environment(python: str, project: Project) -> subprocess.CompletedProcess[str]:
    pytest_command = str(Path(python).with_name("pytest"))
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(
        [pytest_command, "-rA"], capture_output=True, text=True, check=False, cwd=project.root, env=environment
    )
