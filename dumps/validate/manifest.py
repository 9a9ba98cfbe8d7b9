"""Rules of what stands around requests and schedule: manifest, failures, ledger."""

from __future__ import annotations

import re

from dumps.schema import state_pb2 as pb
from dumps.validate.finding import Finding, Findings

FAILURE_KINDS = ("silent-truncation", "non-finite", "contamination", "exception", "timeout", "process-death", "stall")
REASONS = (*FAILURE_KINDS, "signal", "demand")
LEVELS = ("shape", "tokens", "full")
PLACES = ("kv-cache", "logits", "temperature", "softmax")

_HEX16 = re.compile(r"[0-9a-f]{16}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_manifest(state: pb.RuntimeState) -> Findings:
    """All rules of ``state.manifest``, ``state.failures`` and ``state.ledger``."""
    manifest = state.manifest
    if not _HEX16.fullmatch(manifest.id):
        yield Finding("manifest.id", "manifest.id", "must be 16 lower-case hex digits")
    if manifest.reason not in REASONS:
        yield Finding("manifest.reason", "manifest.reason", f"not one of {', '.join(REASONS)}")
    if manifest.record_level not in LEVELS:
        yield Finding("manifest.level", "manifest.record_level", f"not one of {', '.join(LEVELS)}")
    if manifest.platform_fingerprint and not _SHA256.fullmatch(manifest.platform_fingerprint):
        yield Finding("manifest.platform", "manifest.platform_fingerprint", "must be a sha256 in hex")
    for index, failure in enumerate(state.failures):
        yield from _failure(state, failure, f"failures[{index}]")
    for index, entry in enumerate(state.ledger):
        if entry.grade == pb.GRADE_UNSPECIFIED:
            yield Finding("ledger.grade", f"ledger[{index}].grade", "an entry needs a grade")


def _failure(state: pb.RuntimeState, failure: pb.Failure, path: str) -> Findings:
    if failure.kind not in FAILURE_KINDS:
        yield Finding("failures.kind", f"{path}.kind", f"not one of {', '.join(FAILURE_KINDS)}")
    if failure.HasField("request") and failure.request >= len(state.requests):
        yield Finding("failures.request", f"{path}.request", f"there is no request {failure.request}")
    last = state.steps[-1].index if state.steps else None
    # A failure between two steps names the one to come.
    if failure.HasField("step") and last is not None and failure.step > last + 1:
        yield Finding("failures.step", f"{path}.step", f"step {failure.step}, the last one recorded is {last}")
    if failure.HasField("kv_cache_used_bytes") and failure.HasField("max_kv_cache_bytes"):
        used, most = failure.kv_cache_used_bytes, failure.max_kv_cache_bytes
        if used > most:
            yield Finding("failures.bytes", f"{path}.kv_cache_used_bytes", f"{used} bytes used of {most}")
    if failure.HasField("non_finite"):
        yield from _non_finite(state, failure.non_finite, f"{path}.non_finite")
    if failure.HasField("read"):
        for name, limit in (("block", state.kv.num_blocks), ("slot", state.kv.block_size)):
            if limit and (value := getattr(failure.read, name)) >= limit:
                yield Finding("failures.read", f"{path}.read.{name}", f"{value} is outside 0 to {limit - 1}")


def _non_finite(state: pb.RuntimeState, place: pb.NonFinite, path: str) -> Findings:
    if place.where not in PLACES:
        yield Finding("failures.non-finite", f"{path}.where", f"not one of {', '.join(PLACES)}")
    kv = state.kv
    limits = (("layer", kv.num_layers), ("block", kv.num_blocks), ("slot", kv.block_size))
    for name, limit in limits:
        if place.HasField(name) and limit and getattr(place, name) >= limit:
            yield Finding(
                "failures.non-finite", f"{path}.{name}", f"{getattr(place, name)} is outside 0 to {limit - 1}"
            )
