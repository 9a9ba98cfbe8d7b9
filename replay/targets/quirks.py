"""Which of the quirks that a dump names are in force in its replay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dumps.schema import state_pb2 as pb
from replay.engine.quirks import KINDS, Quirk, nearest, parse_quirk
from replay.errors import UsageError
from replay.report import finding


def quirks_in_force(state: pb.RuntimeState, off: Collection[str]) -> tuple[Quirk, ...]:
    """The recorded defects of code without those that are named in ``off``.

    What damaged data is not done again, and a quirk that this version does not know cannot be. Raises `UsageError` for
    one in ``off`` that the dump does not name.
    """
    recorded = [quirk.name for quirk in state.quirks]
    for name in off:
        if name not in recorded:
            raise UsageError(
                f"--set quirk.{name}=off: this dump was recorded without that quirk",
                remedy=nearest(name, recorded) if recorded else "it was recorded without any",
            )
    parsed = [_parsed(quirk) for quirk in state.quirks]
    return tuple(quirk for quirk in parsed if quirk and not quirk.kind.damages_data and quirk.name not in off)


def listed(state: pb.RuntimeState, in_force: Sequence[Quirk]) -> list[dict[str, Any]]:
    """The report's entries: every recorded quirk, and whether the replay had it too."""
    names = {quirk.name for quirk in in_force}
    return [
        {"name": quirk.name, "detail": quirk.detail, "in_force": quirk.name in names, "note": _note(quirk, names)}
        for quirk in state.quirks
    ]


def unknown_quirks(state: pb.RuntimeState) -> list[dict[str, Any]]:
    """A finding for each recorded quirk that this version cannot imitate."""
    return [
        finding(
            "quirk-unknown",
            f"the dump was recorded with quirk {quirk.name!r} ({quirk.detail}), which this version does not know: the "
            "replay is without it",
            remedy="replay with the version that recorded it",
            quirk=quirk.name,
        )
        for quirk in state.quirks
        if _parsed(quirk) is None
    ]


def _parsed(quirk: pb.Quirk) -> Quirk | None:
    try:
        return parse_quirk(f"{quirk.name}:{quirk.detail}" if quirk.detail else quirk.name)
    except UsageError:
        return None


def _note(quirk: pb.Quirk, in_force: Collection[str]) -> str:
    if _parsed(quirk) is None:
        return "not known here"
    if quirk.name in in_force:
        return "in force"
    damages = KINDS[quirk.name].damages_data
    return "not done again: its damage is in recorded KV contents only" if damages else "turned off"
