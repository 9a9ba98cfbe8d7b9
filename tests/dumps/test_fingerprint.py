from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dumps.fingerprint import fingerprint, platform_pairs


def test_pairs_are_sorted_and_say_what_can_change_bits(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    pairs = platform_pairs({"threads": "2", "python": "mine"})
    assert list(pairs) == sorted(pairs)
    assert (pairs["env.ATEN_CPU_CAPABILITY"], pairs["env.ONEDNN_MAX_CPU_ISA"]) == ("avx2", "")
    assert (pairs["threads"], pairs["python"]) == ("2", "mine")
    assert {"cpu.model", "cpu.isa", "machine"} <= set(pairs)


def test_a_cap_on_the_instruction_set_changes_the_fingerprint(monkeypatch):
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    before = fingerprint(platform_pairs())
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert fingerprint(platform_pairs()) == before
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert fingerprint(platform_pairs()) != before


pairs = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)


@given(one=pairs, other=pairs)
def test_equal_exactly_when_the_pairs_are(one, other):
    assert (fingerprint(one) == fingerprint(other)) == (one == other)
    assert fingerprint(dict(reversed(one.items()))) == fingerprint(one)
