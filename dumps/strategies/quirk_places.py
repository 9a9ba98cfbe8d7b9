"""Quirks that name a request by its number in order of arrival, kept right when requests come and go."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dumps.schema import state_pb2 as pb

_REQUEST = re.compile(r"(?<![^,])request=([0-9]+)(?![^,])")


def renumbered(state: pb.RuntimeState, before: Sequence[str]) -> None:
    """Let each quirk in ``state`` follow its request, by the ids in order of arrival ``before`` the change.

    One whose request is gone goes, too. A record that does not begin with its run tells no numbers, and keeps them.
    """
    if state.scheduler.start.waiting:
        return
    after = [request.id for request in state.requests]
    kept = []
    for quirk in state.quirks:
        named = _REQUEST.search(quirk.detail)
        if named is not None:
            number = int(named[1])
            if number >= len(before) or before[number] not in after:
                continue
            place = after.index(before[number])
            quirk.detail = quirk.detail[: named.start(1)] + str(place) + quirk.detail[named.end(1) :]
        kept.append(pb.Quirk(name=quirk.name, detail=quirk.detail))
    state.ClearField("quirks")
    state.quirks.extend(kept)
