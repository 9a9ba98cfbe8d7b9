"""Names that modules hold of their own are replaced, and all of them come back."""

from __future__ import annotations

import os
import sys
import types

import pytest

from dumps.record.seams import rebind as rebind_module
from dumps.record.seams.rebind import StandIn, rebind


def original() -> str:
    return "original"


def stand_in() -> str:
    return "stand-in"


def make_module(monkeypatch: pytest.MonkeyPatch, name: str, **names: object) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_every_global_that_is_the_object_is_replaced_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_module(monkeypatch, "one", f=original, alias=original, other=stand_in.__name__)
    kept = make_module(monkeypatch, "kept.inside", f=original)
    near = make_module(monkeypatch, "keptness", f=original)
    ours = make_module(monkeypatch, "replay.somewhere", f=original)
    undo = rebind({original: stand_in}, keep=("kept",))
    assert (one.f, one.alias, one.other, near.f) == (stand_in, stand_in, "stand_in", stand_in)
    assert kept.f is ours.f is globals_of_this_test()["kept_original"]
    late = make_module(monkeypatch, "late", f=one.f)
    vars(one)["alias"] = "set by the program"
    undo()
    assert one.f is near.f is late.f is kept.f
    assert one.alias == "set by the program"
    assert original() == "original"


KEPT = [original]  # in a list, where it is not replaced


def globals_of_this_test() -> dict[str, object]:
    return {"kept_original": KEPT[0]}


def test_odd_objects_among_the_modules_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"loaded for {name}")

    class Slotted:
        __slots__ = ()

    for name, value in {"lazy": Lazy("lazy"), "slotted": Slotted(), "none": None}.items():
        monkeypatch.setitem(sys.modules, name, value)
    rebind({original: stand_in})()


def test_a_stand_in_in_a_class_does_not_become_a_method() -> None:
    class Keeper:
        getpid = StandIn(os.getpid, lambda: 7)

    assert Keeper().getpid() == 7
    assert StandIn(os.getpid, lambda: 7).__dict__["__name__"] == "getpid"
    assert rebind_module.OURS[:2] == ("replay", "dumps")
