"""Checks a state for contradictions. Many crashes are explained here, with nothing run."""

from __future__ import annotations

from itertools import chain, islice

from dumps.schema import state_pb2 as pb
from dumps.validate.finding import Finding
from dumps.validate.kv import check_kv
from dumps.validate.manifest import check_manifest
from dumps.validate.requests import check_requests
from dumps.validate.schedule import check_schedule

__all__ = ["MAX_FINDINGS", "Finding", "validate"]

MAX_FINDINGS = 1000
"""A damaged state can break one rule a million times."""


def validate(state: pb.RuntimeState) -> list[Finding]:
    """Every contradiction in ``state``, at most `MAX_FINDINGS`; empty for the state of a correct recorder.

    Never raises for what is in a state.
    """
    rules = chain(check_manifest(state), check_requests(state), check_kv(state), check_schedule(state))
    return list(islice(rules, MAX_FINDINGS))
