"""The fidelity ledger: where each part of a dump comes from, and the weakest grade that a claim rests on.

A field without an entry was recorded by the failing process itself. An entry speaks for the field it names and for
everything below it.
"""

from __future__ import annotations

from dumps.paths import parse, pattern
from dumps.schema import state_pb2 as pb


def record(state: pb.RuntimeState, path: str, grade: pb.Grade, note: str = "") -> None:
    """Enter ``grade`` for ``path``, in place of an earlier entry for the same path.

    ``note`` says why, and for ABSENT which setting would have recorded it. Raises `UnknownPath` when ``path`` is not a
    path, and ValueError for GRADE_UNSPECIFIED.
    """
    parse(path)
    if grade == pb.GRADE_UNSPECIFIED:
        raise ValueError("a ledger entry needs a grade")
    for entry in state.ledger:
        if entry.path == path:
            entry.grade, entry.note = grade, note
            return
    state.ledger.add(path=path, grade=grade, note=note)


def weakest(state: pb.RuntimeState, path: str) -> pb.LedgerEntry:
    """The entry with the weakest grade among those for ``path``, above it or below it.

    Without any: an entry that says OBSERVED. ``requests[3].id`` is covered by entries for ``requests[].id``,
    ``requests[3]`` and ``requests``.
    """
    found = [entry for entry in state.ledger if _related(entry.path, path)]
    # The numbers of the grades ascend from observed to absent.
    return max(found, key=lambda entry: entry.grade, default=pb.LedgerEntry(path=path, grade=pb.OBSERVED))


def weak_entries(state: pb.RuntimeState) -> list[pb.LedgerEntry]:
    """Entries that a report must mention first: all that are not OBSERVED, weakest first."""
    return sorted((e for e in state.ledger if e.grade != pb.OBSERVED), key=lambda e: (-e.grade, e.path))


def grade_name(grade: pb.Grade) -> str:
    """The word for a grade, such as "observed"; a number for one that this release does not know."""
    known = pb.Grade.DESCRIPTOR.values_by_number.get(grade)
    return known.name.lower() if known else f"grade {grade:d}"


def _related(one: str, other: str) -> bool:
    """Whether one path is the other or a part of it; an index matches ``[]`` and no index at all."""
    for a, b in zip(pattern(one).split("."), pattern(other).split("."), strict=False):
        if a.removesuffix("[]") != b.removesuffix("[]"):
            return False
    return all(
        a.partition("[")[2] == b.partition("[")[2] or "[]" in (a[-2:], b[-2:]) or "[" not in a or "[" not in b
        for a, b in zip(one.split("."), other.split("."), strict=False)
    )
