"""Attributes are put back exactly as they were."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dumps.record.seams.patches import Patches


class Base:
    def inherited(self) -> str:
        """Said by the base."""
        return "base"


class Derived(Base):
    def own(self) -> str:
        return "own"


def louder(original: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: original(*args).upper()


def test_put_back_as_they_were():
    before = dict(vars(Derived))
    patches = Patches()
    assert patches.wrap(Derived, "inherited", louder)
    assert patches.wrap(Derived, "inherited", lambda original: lambda self: original(self) + "!")
    assert patches.wrap(Derived, "own", louder)
    assert (Derived().inherited(), Derived().own(), Base().inherited()) == ("BASE!", "OWN", "base")
    assert Derived.inherited.__doc__ == "Said by the base."
    patches.undo()
    assert dict(vars(Derived)) == before, "an inherited one is inherited again"
    assert (Derived().inherited(), Derived().own()) == ("base", "own")
    patches.undo()


def test_one_that_there_is_not():
    patches = Patches()
    assert not patches.wrap_all([(Derived, "missing", louder), (Derived, "inherited", louder)])
    assert Derived().inherited() == "BASE", "the others are wrapped all the same"
    patches.undo()
    assert not hasattr(Derived, "missing")


def test_undone_it_waits_for_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "imported_late.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    imported: list[str] = []
    left, undone = Patches(), Patches()
    left.when_imported("imported_late", lambda module: imported.append("left"))
    undone.when_imported("imported_late", lambda module: imported.append("undone"))
    undone.undo()
    importlib.import_module("imported_late")
    left.undo()
    assert imported == ["left"]
