"""A library is prepared for recording when it is imported, before anybody uses it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType

import pytest

from dumps.record.seams import late
from dumps.record.seams.late import when_imported


@pytest.fixture
def package(tmp_path, monkeypatch) -> Iterator[str]:
    """A package that is not imported yet, with a module in it that counts how often it ran."""
    folder = tmp_path / "late_example"
    folder.mkdir()
    (folder / "__init__.py").write_text("from late_example.inner import value\n")
    (folder / "inner.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield "late_example"
    for name in ("late_example", "late_example.inner"):
        sys.modules.pop(name, None)
    assert sys.meta_path == before


def test_one_that_is_imported_already():
    seen: list[ModuleType] = []
    undo = when_imported("json", seen.append)
    assert [module.__name__ for module in seen] == ["json"]
    undo()


def test_one_that_is_imported_later(package):
    seen: list[int] = []
    when_imported(package, lambda module: seen.append(module.value))
    when_imported(f"{package}.inner", lambda module: seen.append(-module.value))
    assert seen == []
    module = __import__(package)
    assert seen == [-1, 1], "each when its own code has run"
    assert module.__spec__ is not None
    assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__ == "SourceFileLoader"


def test_one_that_is_not_waited_for_any_more(package):
    seen: list[ModuleType] = []
    when_imported(package, seen.append)()
    undo = when_imported(package, seen.append)
    undo()
    undo()
    __import__(package)
    assert seen == []


def test_one_that_does_not_exist(package):
    undo = when_imported("no_such_library", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_library")
    undo()


def test_an_error_of_the_callback_does_not_fail_the_import(package, caplog):
    when_imported(package, lambda module: 1 / 0)
    assert __import__(package).value == 1
    assert "late_example could not be prepared" in caplog.text
    assert late._waiting == {}


LATE = """
    import sys
    from dumps.record.recorder import RecordLevel
    from dumps.record.seams import aiohttp_client, http_client_socket, httpcore_backend
    from dumps.record.seams.log import WorldLog

    log = WorldLog(level=RecordLevel.FULL)
    undo = [seam.install(log) for seam in (aiohttp_client, http_client_socket, httpcore_backend)]
    for library in ("aiohttp", "httpcore", "httpcore2", "urllib3", "anyio"):
        assert library not in sys.modules, f"a seam imports {library} itself"

    from tests.http_clients import CLIENTS, Ask
    from tests.scripted_server import scripted_server

    with scripted_server({"/": [b"HTTP/1.1 204 No Content\\r\\n\\r\\n"]}) as server:
        for name, client in CLIENTS.items():
            assert client(Ask((server.url("/"),))) == [(204, b"")], name
    assert [one.status for one in log.exchanges] == [204] * len(CLIENTS), log.exchanges
    for one in undo:
        one()
    assert not any(type(finder).__module__ == "dumps.record.seams.late" for finder in sys.meta_path)
"""


def test_every_client_is_recorded_when_it_is_imported_after_the_recording_began():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(LATE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
