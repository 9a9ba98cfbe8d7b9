"""``git bisect run pplx-replay run DUMP --bisect`` in a small repository finds the commit that brought a bug in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loopback import Loopback
from tests.small_programs import ASKING, SmallPrograms, says

GOOD = """
def main(url):
    weather = get(url)
    return parse(weather)

def parse(text):
    return float(text.split()[0])
"""
RENAMED = GOOD.replace("weather", "report")
BAD = RENAMED.replace("text.split()[0]", "text")
LATER = BAD + "\n\ndef unused(url):\n    return None\n"
HISTORY = (
    ("Begin", GOOD),
    ("Rename a variable", RENAMED),
    ("Add a line", RENAMED + "\n"),
    ("Does not even compile", RENAMED + "\ndef\n"),  # in the middle, where a bisection begins
    ("Compiles again", RENAMED + "\n\n"),
    ("Parse what is there", BAD),
    ("Add a function", LATER),
)


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> str:
        # Nobody's own settings: a signing key, a hook, a default branch.
        identity = {f"GIT_{who}_{what}": "demo" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **identity}
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def commit(self, message: str, source: str) -> None:
        (self.folder / "weather.py").write_text(ASKING + source)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "demo")
    for message, source in HISTORY:
        made.commit(message, source)
    return made


@pytest.fixture
def crash(tmp_path):
    """The dump that the newest version left when it failed in production."""
    (tmp_path / "production").mkdir()
    programs = SmallPrograms(tmp_path / "production")
    programs.write(LATER, name="weather")
    with Loopback(says("21.5 degrees")) as server:
        return programs.record("weather", url=server.url)


def test_the_first_bad_commit_is_found_past_one_that_cannot_be_replayed(repository, crash):
    command = Path(sys.executable).with_name("pplx-replay")
    repository.git("bisect", "start", "HEAD", "HEAD~6")
    run = (str(command), "run", str(crash), "--target", "app=weather:main", "--answers", "recorded", "--bisect")
    told = repository.git("bisect", "run", *run)
    assert "is the first bad commit" in told
    assert "# skip:" in repository.git("bisect", "log")
    assert repository.git("show", "--no-patch", "--format=%s", "refs/bisect/bad").strip() == "Parse what is there"
