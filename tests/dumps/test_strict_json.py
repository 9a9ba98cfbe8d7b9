"""What the standard library's decoder lets through is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.strict_json import MAX_DEPTH, MAX_INTEGER_DIGITS, InvalidJson, loads

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    # Keys may hold no half of a surrogate pair; neither do texts here.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), inner)
    ),
    max_leaves=20,
)


@given(documents)
def test_what_is_json_is_read_as_the_standard_library_reads_it(document: Any) -> None:
    assert loads(json.dumps(document).encode()) == document


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', "stands twice"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[-Infinity]", "Infinity is not JSON"),
        (b"[1e999]", "not a finite number"),
        (b"9" * (MAX_INTEGER_DIGITS + 1), "an integer of 41 digits"),
        (b"9" * 5000, "an integer of 5000 digits"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested deeper than 64 at byte 64"),
        (b'{"\\ud800": 1}', "surrogate"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"[1,", "not JSON"),
        (b"", "not JSON"),
    ],
)
def test_traps(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidJson, match=reason):
        loads(data)


def test_brackets_in_strings_are_no_depth() -> None:
    assert loads(json.dumps("[" * 500 + '\\"').encode()) == "[" * 500 + '\\"'
    assert loads(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) is not None


def test_floats_are_given_the_value_that_is_asked_for() -> None:
    assert loads(b"[1.5, 2, 1e3]", of_float=lambda value: round(value * 10)) == [15, 2, 10000]
