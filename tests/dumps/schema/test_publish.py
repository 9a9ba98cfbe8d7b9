"""A published file is whole or not there, and never replaces another."""

from __future__ import annotations

import errno
import os

import pytest

from dumps.errors import DumpError
from dumps.schema.publish import published


def write_half(target):
    with published(target) as part:
        part.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_second(target):
    with published(target) as part:
        part.write_bytes(b"second")
        target.write_bytes(b"first")


def test_what_was_written_is_there_under_its_name_only(tmp_path):
    with published(tmp_path / "a") as part:
        part.write_bytes(b"x")
        assert not (tmp_path / "a").exists()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"x"}


def test_a_full_disk_leaves_nothing_and_is_a_dump_error(tmp_path):
    with pytest.raises(DumpError, match="No space left") as caught:
        write_half(tmp_path / "a")
    assert "-o" in caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_one_that_came_first_stays(tmp_path):
    with pytest.raises(FileExistsError):
        write_second(tmp_path / "a")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"first"]


def test_without_hard_links_it_is_renamed(tmp_path, monkeypatch):
    def refuse(*_paths):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with published(tmp_path / "a") as part:
        part.write_bytes(b"x")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    with pytest.raises(FileExistsError), published(tmp_path / "a") as part:
        part.write_bytes(b"y")
