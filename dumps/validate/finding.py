"""What a validation rule reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dumps.tensors import LE32_BYTES, from_le32


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction in a state.

    ``rule`` is a stable id such as "kv.ref-count", ``path`` names the field as in `dumps.paths`, ``message`` is one
    sentence for a person. An "error" cannot come from a correct recorder; a "warning" is possible and worth a look.
    """

    rule: str
    path: str
    message: str
    severity: Literal["error", "warning"] = "error"


Findings = Iterator[Finding]


def whole_ids(data: bytes) -> list[int]:
    """The int32 ids in ``data``, without an incomplete last one, which `check_le32` reports."""
    return from_le32(data[: len(data) // LE32_BYTES * LE32_BYTES])


def check_le32(rule: str, path: str, data: bytes, count: int | None = None) -> Findings:
    """A list of int32 ids has whole ids, and ``count`` of them where that is known."""
    if len(data) % LE32_BYTES:
        yield Finding(rule, path, f"{len(data)} bytes are not a whole number of int32 ids")
    elif count is not None and len(data) != LE32_BYTES * count:
        yield Finding(rule, path, f"{len(data) // LE32_BYTES} ids where {count} are claimed")


def check_range(rule: str, path: str, ids: list[int], limit: int, what: str) -> Findings:
    """Every id is in [0, limit). Reports the first that is not, and how many more there are. Limit 0: not known."""
    if limit < 1:
        return
    bad = [value for value in ids if not 0 <= value < limit]
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        yield Finding(rule, path, f"{what} {bad[0]}{more} is outside 0 to {limit - 1}")
