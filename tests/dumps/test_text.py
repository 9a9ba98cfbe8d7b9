"""Nothing that comes out of `printable` can act on a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.text import printable


@given(st.text())
def test_only_printable_characters_come_out(text):
    assert {unicodedata.category(char) for char in printable(text)}.isdisjoint(
        {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\u202eevil", "\\u202eevil"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\x9b2J", "\\x9b2J"),
        ("\u2028", "\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("köln 東京 [bold]", "köln 東京 [bold]"),
    ],
)
def test_what_is_escaped_and_what_is_not(text, shown):
    assert printable(text) == shown


def test_what_is_cut_is_counted():
    assert printable("x" * 205) == "x" * 200 + "… (+5 characters)"
    assert printable("\x1b" * 10, limit=2) == "\\x1b\\x1b… (+8 characters)"
    assert printable("x" * 200) == "x" * 200
