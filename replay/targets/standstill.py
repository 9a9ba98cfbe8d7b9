"""The record of an engine that came to a standstill, up to the moment at which nothing could go on."""

from __future__ import annotations

from dataclasses import replace

from dumps.schema import state_pb2 as pb
from replay.engine.failure import FailureKind
from replay.signature import Signature
from replay.targets.rebuild import Rebuilt


def is_stall(failure: Signature | None) -> bool:
    return failure is not None and failure.identity.kind == FailureKind.STALL


def until_standstill(rebuilt: Rebuilt, state: pb.RuntimeState, stall: Signature) -> Rebuilt:
    """The steps up to that of the dump's own ``stall``, and the requests that had come by the moment after it.

    `Rebuilt.stalls` stays False when the record does not hold that moment, or not the request that waits: then there
    is nothing to prove it from.
    """
    step = stall.location.step
    wanted = 0 if step is None else step + 1
    first = rebuilt.steps[0].index if rebuilt.steps else 0
    lost = any(entry.path == "steps" and entry.grade == pb.ABSENT for entry in state.ledger)
    if lost or not first <= wanted <= first + len(rebuilt.steps) or (rebuilt.start is not None and wanted == first):
        return rebuilt
    steps, later = rebuilt.steps[: wanted - first], rebuilt.steps[wanted - first :]
    come = [request for one in steps for request in one.arrived]
    if rebuilt.start is not None:
        come += [*rebuilt.start.running, *rebuilt.start.waiting]
    if later:
        late = later[0].arrived
    else:
        known = set(come)
        queued = [rebuilt.requests[index] for index in state.scheduler.waiting]
        late = tuple(r for r in queued if r not in known and r.id not in rebuilt.turned_away)
    waits = stall.location.request_id
    if waits not in {request.id for request in (*come, *late)} and waits not in rebuilt.turned_away:
        return rebuilt
    return replace(rebuilt, steps=steps, late=late, stalls=True)
