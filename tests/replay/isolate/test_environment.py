from __future__ import annotations

import subprocess

from replay.isolate.environment import MAX_BYTES, added


def test_variables_that_are_too_large_together_are_left_out_the_largest_first() -> None:
    many = {f"V{number}": "y" * 2000 for number in range(2000)} | {"ONE": "1", "WIDE": "\u20ac" * 32_768}
    kept = added(many)
    assert kept["ONE"] == "1"
    assert "WIDE" not in kept
    assert 200 < len(kept) < 300
    assert sum(len(name) + len(value) for name, value in kept.items()) < MAX_BYTES
    subprocess.run(["true"], env=kept, check=True)  # which the system does not do with all of them


def test_the_largest_that_fits_starts_a_process() -> None:
    kept = added({"WIDE": "\u20ac" * 32_000})
    assert list(kept) == ["WIDE"]
    subprocess.run(["true"], env=kept, check=True)
