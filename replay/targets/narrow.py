"""``--scope request``: the failing request alone, in an engine of its own.

Its bits do not depend on its batch mates, so what it said comes back; what it lacked because of them does not, and that
tells the two kinds of failure apart.
"""

from __future__ import annotations

from dataclasses import replace

from replay.engine.recorded import RecordedStep
from replay.engine.request import Status
from replay.errors import UsageError
from replay.signature import Signature
from replay.targets.rebuild import Rebuilt


def only_request(rebuilt: Rebuilt, failure: Signature | None) -> Rebuilt:
    """The request of the dump's own failure, from its first token on.

    Raises `UsageError` when the failure names none of this dump's requests.
    """
    wanted = failure.location.request_id if failure else None
    request = next((r for r in rebuilt.requests if r.id == wanted), None)
    if request is None:
        raise UsageError(
            "--scope request: the failure in this dump names no single request", remedy="replay it with --scope engine"
        )
    request.tokens = request.tokens[: request.num_prompt]
    request.num_computed, request.blocks, request.status = 0, [], Status.WAITING
    output = replace(rebuilt.outputs[request.id], drawn_before=0, steps=())
    return replace(
        rebuilt,
        requests=(request,),
        outputs={request.id: output},
        # One step in which it arrives, and nothing else is taken from the record.
        steps=(RecordedStep(index=0, arrived=(request,)),),
        start=None,
    )
