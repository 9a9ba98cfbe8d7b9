"""Checks a state for contradictions. Many crashes are explained here, with nothing run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from dumps.schema import state_pb2 as pb
from dumps.validate.finding import Finding
from dumps.validate.history import check_history
from dumps.validate.kv import check_kv
from dumps.validate.manifest import check_manifest
from dumps.validate.program import check_program
from dumps.validate.requests import check_requests
from dumps.validate.schedule import check_schedule
from dumps.validate.trace import check_trace

__all__ = ["MAX_FINDINGS", "Finding", "findings", "validate"]

MAX_FINDINGS = 1000
"""A damaged state can break one rule a million times."""


def validate(state: pb.RuntimeState) -> list[Finding]:
    """Every contradiction in ``state``, at most `MAX_FINDINGS`; empty for the state of a correct recorder.

    Never raises for what is in a state.
    """
    return list(islice(findings(state), MAX_FINDINGS))


def findings(state: pb.RuntimeState) -> Iterator[Finding]:
    """Every contradiction in ``state``, however many, one rule after the other."""
    return chain(
        check_manifest(state),
        check_requests(state),
        check_kv(state),
        check_history(state),
        check_schedule(state),
        check_trace(state),
        check_program(state),
    )
