"""Runs the fixtures of a project as tests, in any project in which this package is installed.

Every folder below ``fixtures/`` with a fixture.json of ours is collected, one test for each of its replays. For tests
of one's own:

    @pytest.mark.replay("tool-hang")
    def test_the_agent_gives_up_in_time(replay_env):
        with replay_env:                      # the recorded clock, network, files and tools
            assert main("...") == "sorry"

Nothing of this changes the process of the tests: replays run in workers of their own, without network. Importing this
module brings nothing but pytest.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replay.fixtures.folder import DOCUMENT, DUMP, FOLDER, fixtures_in, is_fixture

if TYPE_CHECKING:
    from dumps.schema.reader import Dump
    from replay.fixtures.check import Outcome
    from replay.fixtures.document import Fixture, Replay
    from replay.runtime.env import Env

INI = "replay_fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("replay", "fixtures of pplx-replay")
    group.addoption(
        "--replay-fixtures",
        metavar="DIR",
        help=f"Folder of the fixtures that are run as tests. [default: {INI} of the configuration, or {FOLDER}/]",
    )
    group.addoption(
        "--no-replay-fixtures",
        action="store_true",
        help="Do not run them; the fixtures replay_dump and replay_env stay.",
    )
    parser.addini(
        INI, f"Folder of pplx-replay's fixtures, relative to the rootdir. [default: {FOLDER}]", default=FOLDER
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "replay(name): the fixture that replay_dump and replay_env of this test are of")
    if config.option.no_replay_fixtures:
        return
    folder, named = _folder(config), config.option.replay_fixtures
    if named and not folder.is_dir():
        raise pytest.UsageError(f"--replay-fixtures: there is no folder {folder}")
    source, sources = config.args_source, pytest.Config.ArgsSource
    # Where pytest looks at some folders only, and nobody said at which ones for this run, these are of them.
    if source is sources.TESTPATHS or (named and source is sources.INVOCATION_DIR):
        searched = [(config.invocation_params.dir / argument).resolve() for argument in config.args]
        config.args += [
            str(fixture / DOCUMENT)
            for fixture in fixtures_in(folder)
            if not any(fixture.resolve().is_relative_to(path) for path in searched)
        ]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    config = parent.config
    if file_path.name != DOCUMENT or config.option.no_replay_fixtures:
        return None
    if file_path.parent.parent.resolve() != _folder(config).resolve():
        return None
    return FixtureFile.from_parent(parent, path=file_path) if is_fixture(file_path.parent) else None


def _folder(config: pytest.Config) -> Path:
    if named := config.option.replay_fixtures:
        return Path(os.path.normpath(config.invocation_params.dir / named))
    return Path(os.path.normpath(config.rootpath / config.getini(INI)))


class FixtureFile(pytest.File):
    """The fixture.json of one fixture."""

    def collect(self) -> Iterable[pytest.Item]:
        from replay.fixtures.document import InvalidFixture, load_fixture

        try:
            fixture = load_fixture(self.path.parent)
        except InvalidFixture as error:
            raise self.CollectError(f"{error}\n{error.remedy}".strip()) from None
        for one in fixture.replays:
            yield ReplayItem.from_parent(self, name=one.label, fixture=fixture, one=one)


class ReplayItem(pytest.Item):
    """One replay of a fixture: it passes if it comes to what the fixture says."""

    def __init__(self, *, fixture: Fixture, one: Replay, **rest: Any) -> None:
        super().__init__(**rest)
        self.fixture, self.one = fixture, one
        self.add_marker(pytest.mark.replay(fixture.name))

    def runtest(self) -> None:
        from replay.fixtures.check import Status, check_replay

        outcome = check_replay(self.fixture, self.one)
        self.user_properties.append(("verdict", outcome.seen))
        if outcome.status is Status.SKIPPED:
            pytest.skip("; ".join(outcome.problems))
        if outcome.status is not Status.PASSED:
            raise ReplayFailed(outcome)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **rest: Any) -> Any:
        """What ``pplx-replay run`` prints of a replay; the stack of whoever ran it says nothing."""
        if isinstance(excinfo.value, ReplayFailed):
            return excinfo.value.text()
        return super().repr_failure(excinfo, *args, **rest)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.fixture.name}::{self.one.label}"


class ReplayFailed(Exception):
    """A replay did not come to what its fixture says."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("; ".join(outcome.problems))
        self.outcome = outcome

    def text(self) -> str:
        from rich.console import Console

        from replay.cli.console import PIPE_WIDTH
        from replay.cli.fixture_view import show_details

        text = io.StringIO()
        show_details(Console(file=text, markup=False, emoji=False, highlight=False, width=PIPE_WIDTH), self.outcome)
        return text.getvalue()


@pytest.fixture
def replay_dump(request: pytest.FixtureRequest) -> Iterator[Dump]:
    """The open dump of the fixture that ``@pytest.mark.replay("name")`` names. Changing its state changes no file."""
    from dumps.schema.reader import open_dump

    with _in_words():
        dump = open_dump(_marked(request) / DUMP)
    with dump:
        yield dump


@pytest.fixture
def replay_env(request: pytest.FixtureRequest) -> Env:
    """The recorded world of the program whose dump ``@pytest.mark.replay("name")`` names: enter it with ``with``.

    What was not recorded is refused in it, and nothing real is reached through the clients that it fakes.
    """
    from replay.runtime.env import load_env

    with _in_words():
        return load_env(_marked(request) / DUMP)


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """A dump that cannot be used fails the test with what to do, and without our stack."""
    from dumps.errors import DumpError
    from replay.errors import ReplayError

    try:
        yield
    except (DumpError, ReplayError) as error:
        pytest.fail(f"{error}\n{error.remedy}".strip(), pytrace=False)


def _marked(request: pytest.FixtureRequest) -> Path:
    """The folder of the fixture that a test is marked with."""
    folder = _folder(request.config)
    marker = request.node.get_closest_marker("replay")
    match marker.args if marker is not None else ():
        case (str(name),):
            pass
        case _:
            pytest.fail('say which fixture this test is of: @pytest.mark.replay("NAME")', pytrace=False)
    there = {path.name: path for path in fixtures_in(folder)}
    if name not in there:
        listed = ", ".join(there) or "none"
        pytest.fail(f"there is no fixture {name!r} in {folder}, which has: {listed}", pytrace=False)
    return there[name]
