"""The error tree."""

from __future__ import annotations

import pytest

from dumps import errors
from dumps.errors import CorruptDump, DumpError

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, DumpError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_each_says_what_where_and_what_next(kind):
    error = kind("wrong", offset=7)
    assert str(error) == "wrong (at byte 7)"
    assert error.remedy
    assert kind.__doc__
    assert isinstance(error, DumpError)


def test_without_a_place():
    assert str(CorruptDump("wrong")) == "wrong"


def test_a_remedy_of_its_own():
    assert CorruptDump("wrong", remedy="Do this.").remedy == "Do this."
    assert CorruptDump("wrong").remedy == CorruptDump.remedy
