"""Databases: in memory they are the program's own, every way to a file is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replay.runtime.databases import install, is_in_memory
from replay.runtime.errors import RuntimeReplayError
from replay.runtime.native_files import ReadsPastTheRecord

REAL = {"connect": sqlite3.connect}  # not a name of this module, which would be found and replaced


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "today.db")
    with REAL["connect"](path) as connection:
        connection.execute("create table t(v)")
        connection.execute("insert into t values(8)")
    return path


@pytest.fixture
def noted() -> Iterator[list[RuntimeReplayError]]:
    errors: list[RuntimeReplayError] = []

    def refuse(error: RuntimeReplayError) -> RuntimeReplayError:
        errors.append(error)
        return error

    undo = install(refuse)
    yield errors
    undo()
    assert sqlite3.connect is REAL["connect"]


@pytest.mark.parametrize(
    ("name", "uri", "in_memory"),
    [
        (":memory:", False, True),
        (b":memory:", False, True),
        ("", False, True),
        ("file::memory:", True, True),
        ("file::memory:?cache=shared", True, True),
        ("file:any?mode=memory&cache=shared", True, True),
        ("file:/any?vfs=memdb", True, True),
        ("file::memory:", False, False),
        ("file:any?mode=memory", False, False),
        ("file:/x.db?y=:memory:", True, False),
        ("file:/x.db?y=mode=memory", True, False),
        ("file:/x.db#?mode=memory", True, False),
        ("x:memory:", False, False),
        ("/x.db", True, False),
        (None, False, False),
    ],
)
def test_which_databases_lie_in_memory(name: Any, uri: bool, in_memory: bool):
    assert is_in_memory(name, uri=uri) is in_memory


def test_a_file_is_refused_also_by_an_address_given_by_place(file: str, noted: list[RuntimeReplayError]):
    by_address: Any = 5.0, 0, "DEFERRED", True, sqlite3.Connection, 128, True
    with pytest.raises(ReadsPastTheRecord, match=r"sqlite3\.connect"):
        sqlite3.connect(file)
    with pytest.raises(ReadsPastTheRecord, match=r"sqlite3\.connect"):
        sqlite3.connect(f"file:{file}?x=:memory:", *by_address)
    sqlite3.connect("file:x?mode=memory", *by_address).close()
    assert len(noted) == 2


@pytest.mark.parametrize("statement", ["attach '{}' as z", "vacuum into '{}2'"])
def test_no_file_is_attached(file: str, noted: list[RuntimeReplayError], statement: str):
    connection = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.DatabaseError):
        connection.execute(statement.format(file))
    assert str(noted[0]).startswith("the program attaches a database file")
    connection.execute("attach ':memory:' as y")
    connection.execute("vacuum")
    assert len(noted) == 1
    connection.close()


def test_a_program_that_sets_its_own_rules_still_attaches_no_file(file: str, noted: list[RuntimeReplayError]):
    asked: list[int] = []

    def authorize(action: int, *names: Any) -> int:
        asked.append(action)
        return sqlite3.SQLITE_OK

    class Own(sqlite3.Connection):
        pass

    connection = sqlite3.connect(":memory:", factory=Own)
    assert isinstance(connection, Own)
    connection.set_authorizer(authorize)
    connection.execute("select 1")
    assert asked
    with pytest.raises(sqlite3.DatabaseError):
        connection.execute("attach ? as z", (file,))
    connection.set_authorizer(None)
    with pytest.raises(sqlite3.DatabaseError):
        connection.execute(f"attach '{file}' as z")
    assert len(noted) == 2
    connection.close()
