"""The report of a replay in our own engine: what a run and its verdict say under the keys of every report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump
from dumps.tensors import le32
from replay.engine.failure import Failure
from replay.engine.perplexity import perplexity
from replay.engine.request import Request
from replay.report import KV_FACTS, build_report, finding
from replay.signature import Signature
from replay.targets.quirks import listed
from replay.targets.result import Run
from replay.verdict import Decision, Verdict

TIMINGS = ("load_s", "rebuild_s", "fast_forward_s", "step_s", "total_s")


def report_of(
    dump: Dump,
    run: Run,
    decision: Decision,
    *,
    expected: Signature | None,
    target: str,
    scope: str,
    full: bool,
    settings: Mapping[str, Any],
    repeat: Mapping[str, int],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    failure = _failure(run, decision.seen)
    return build_report(
        decision,
        **of_dump(dump),
        mode=run.mode,
        kernels=run.kernels,
        target=target,
        scope=scope,
        settings=settings,
        expected=expected,
        divergence=run.divergence.to_json() if run.divergence else None,
        requests=[_request(request, run, full=full) for request in run.requests],
        answers=run.answers,
        perplexity=perplexity(value for answer in run.nll.values() for value in answer.values()),
        fallbacks=_fallbacks(run, full=full),
        kv=_kv(run, failure),
        failure=failure,
        own={
            "compared": asdict(run.counts) | {"window_steps": run.window, "fast_forwarded_tokens": run.fast_forwarded}
        },
        findings=_difference(run) + _other_facts(dump.state, failure, decision) + run.findings,
        quirks=listed(dump.state, run.quirks),
        repeat=repeat,
        timings={name: run.timings.get(name, 0.0) for name in TIMINGS},
        environment={**environment, **run.environment},
    )


def of_dump(dump: Dump) -> dict[str, Any]:
    """What every report says of its dump: ``dump`` names it, ``fidelity`` has from its ledger the grade of everything
    weaker than observed, by path."""
    weaker = (entry for entry in dump.state.ledger if entry.grade != pb.Grade.OBSERVED)
    return {
        "dump": {"id": dump.state.manifest.id, "sha256": dump.sha256},
        "fidelity": {entry.path: pb.Grade.Name(entry.grade).lower() for entry in weaker},
    }


def _failure(run: Run, seen: Signature | None) -> Failure | None:
    return next((failure for failure in run.failures if seen is not None and Signature.of(failure) == seen), None)


def _other_facts(state: pb.RuntimeState, failure: Failure | None, decision: Decision) -> list[dict[str, Any]]:
    """Evidence that a signature leaves out, where the recorded failure and the replay's do not agree on it."""
    located = any(key.startswith("location.") for key in decision.match)
    if failure is None or decision.verdict is not Verdict.REPRODUCED or not located:
        return []
    recorded, place = state.failures[-1], failure.non_finite
    pairs: list[tuple[str, Any, Any]] = [(name, recorded, getattr(failure, name)) for name in KV_FACTS]
    if place is not None and recorded.HasField("non_finite"):
        pairs += [(name, recorded.non_finite, getattr(place, name)) for name in ("position", "written_by_step")]
    return [
        finding("facts-differ", f"{name}: recorded {getattr(message, name)}, replayed {ours}", fact=name)
        for name, message, ours in pairs
        if message.HasField(name) and ours is not None and getattr(message, name) != ours
    ]


def _kv(run: Run, failure: Failure | None) -> dict[str, int | None]:
    """The three numbers an operator looks for: of the failure when it has them, else of the run's fullest moment.

    Bytes are None where the dump does not say how large a block is.
    """
    used = failure.kv_cache_used_bytes if failure else None
    block = run.bytes_per_block
    if used is None and failure is not None and failure.pool is not None and block:
        used = (failure.pool.num_blocks - failure.pool.blocks_free) * block
    return {
        "kv_cache_used_bytes": used if used is not None else run.used_blocks * block if block else None,
        "max_kv_cache_bytes": run.num_blocks * block if block else None,
        "seq_len_exceeded_at": failure.seq_len_exceeded_at if failure else None,
    }


def _request(request: Request, run: Run, *, full: bool) -> dict[str, Any]:
    ids = run.mode != "none" and run.outputs[request.id].tokens is not None
    entry: dict[str, Any] = {
        "id": request.id,
        "status": request.status.value,
        "finish_reason": request.finish_reason.value if request.finish_reason else None,
        "finish_cause": request.finish_cause.value if request.finish_cause else None,
        "prompt_len": request.num_prompt,
        "output_len": request.num_output,
        "recorded_output_len": run.outputs[request.id].num_tokens,
        "output_sha256": hashlib.sha256(le32(request.output)).hexdigest() if ids else None,
        "logits_digest": f"{run.digests[request.id]:016x}" if request.id in run.digests else None,
        "perplexity": perplexity(run.nll.get(request.id, {}).values()),
    }
    if full and ids:
        entry["output_token_ids"] = request.output
    return entry


def _fallbacks(run: Run, *, full: bool) -> dict[str, Any] | None:
    """Counts of the decisions of early exit to go on; each of them only in the full report."""
    if run.fallbacks is None:
        return None
    return {name: value for name, value in run.fallbacks.items() if full or name != "decisions"}


def _difference(run: Run) -> list[dict[str, Any]]:
    if run.difference is None:
        return []
    d = run.difference
    message = (
        f"the schedule differs from the recorded one at step {d.step}, request {d.request_id} ({d.what}): "
        f"recorded {d.recorded}; replayed {d.replayed}"
    )
    return [finding("schedule-differs", message, **asdict(d))]
