"""What the block checks of a replay have to say, as findings: contaminated reads, and the owners of a failed block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replay.engine.block_checks import BlockChecks
from replay.engine.failure import Failure
from replay.engine.ownership import in_words
from replay.report import finding

MOST = 20
"""Findings of one kind, and events of one block: the first and the last say most."""


def check_findings(checks: BlockChecks | None, failures: Sequence[Failure]) -> list[dict[str, Any]]:
    """A finding for each failed check, each block that a failure names, and what the replay had not computed."""
    if checks is None:
        return []
    found = [_contaminated(checks, failure) for failure in checks.found[:MOST]]
    found += [
        _owners(checks, failure) for failure in failures if failure.non_finite and failure.non_finite.block is not None
    ]
    found += [_not_computed(failure) for failure in checks.not_computed[:1]]
    return found


def _contaminated(checks: BlockChecks, failure: Failure) -> dict[str, Any]:
    read = failure.read
    assert read is not None
    owners = _events(checks, read.block)
    last = f"request {read.writer}, position {read.writer_position}" if read.writer else "nobody that is known"
    by = f" in step {read.written_by_step}" if read.written_by_step is not None else ""
    return finding(
        failure.kind.value,
        f"step {failure.step}: {failure.message}; last written by {last}{by}. Block {read.block}: {in_words(owners)}",
        invariant=failure.invariant,
        step=failure.step,
        reader=failure.request_id,
        position=failure.position,
        block=read.block,
        slot=read.slot,
        last_writer=read.writer,
        last_writer_position=read.writer_position,
        written_by_step=read.written_by_step,
        owners=_rows(owners),
    )


def _owners(checks: BlockChecks, failure: Failure) -> dict[str, Any]:
    place = failure.non_finite
    assert place is not None
    assert place.block is not None
    assert place.slot is not None
    owners = _events(checks, place.block)
    writer = checks.last_writer(place.block, place.slot)
    return finding(
        "block-owners",
        f"block {place.block}, the first that is not finite, was read for request {failure.request_id} and last "
        f"written by {f'request {writer}' if writer else 'nobody that is known'}: {in_words(owners)}",
        block=place.block,
        slot=place.slot,
        reader=failure.request_id,
        last_writer=writer,
        written_by_step=place.written_by_step,
        owners=_rows(owners),
    )


def _not_computed(failure: Failure) -> dict[str, Any]:
    return finding(
        "kv-not-computed",
        f"step {failure.step}: {failure.message}: from there on this replay says nothing about that request",
        remedy="a larger --window computes more of the record itself",
        step=failure.step,
        request=failure.request_id,
        position=failure.position,
    )


def _events(checks: BlockChecks, block: int) -> list[Any]:
    return checks.history.of(block)[-MOST:]


def _rows(owners: list[Any]) -> list[dict[str, Any]]:
    return [{"step": one.step, "event": one.event, "request": one.request} for one in owners]
