"""Target `schedule`: the recorded tokens or lengths drive the real scheduler and block pool. No weights, no torch.

Exhaustion, truncation and preemption come back in milliseconds. What needs the model's numbers cannot: then the run
says so.
"""

from __future__ import annotations

import time
from typing import Any

from replay.engine.failure import Failure, FailureKind
from replay.engine.request import Request
from replay.report import finding
from replay.signature import Signature
from replay.targets.checked import check_findings
from replay.targets.door import door_findings
from replay.targets.drive import Deadline, Drive, Emit, RecordedTokens, recorded_stops, shown_without_a_model
from replay.targets.rebuild import Rebuilt
from replay.targets.result import Run
from replay.verdict import Reason


def run_schedule(
    rebuilt: Rebuilt,
    *,
    failure: Signature | None,
    deadline: Deadline,
    emit: Emit,
    rederive: bool = False,
    beyond: bool = False,
    checks: bool = True,
) -> Run:
    """Replay once, up to the dump's own ``failure``. ``beyond`` goes on past the record until the failing request
    ends, since settings were changed.

    Raises `BudgetSpent`.
    """
    tokens = RecordedTokens(rebuilt.outputs)
    drive = Drive(
        rebuilt,
        executor=tokens,
        stop_check=recorded_stops(rebuilt.outputs),
        deadline=deadline,
        emit=emit,
        bytes_per_block=rebuilt.bytes_per_block,
        rederive=rederive,
        checks=checks,
    )
    emit({"event": "step-started"})
    deadline.start()
    began = time.perf_counter()
    drive.run_out(last_step(rebuilt, failure), failing_request(rebuilt, failure) if beyond else None)
    missing = Reason.NONE if rebuilt.steps or rebuilt.stalls else Reason.STEPS_ABSENT
    failures, guessed = _split(shown_without_a_model(drive.trail.failures), tokens.guessed_from)
    findings = door_findings(rebuilt.turned_away) + drive.trail.findings
    if tokens.guessed_from is not None:
        findings.append(_guess(tokens.guessed_from, guessed))
    findings += check_findings(drive.checks, failures)
    if not beyond and _undrawn(rebuilt, failure, failures, tokens.guessed_from):
        missing = Reason.NEEDS_INFERENCE
    if guessed and not failures:
        missing = missing or Reason.RECORD_ENDS
    return Run(
        requests=rebuilt.requests,
        outputs=rebuilt.outputs,
        failures=failures,
        mode="schedule",
        missing=missing,
        findings=findings,
        difference=drive.scheduler.difference,
        steps=drive.trail.steps,
        used_blocks=drive.trail.peak_used_blocks,
        num_blocks=rebuilt.config.num_blocks,
        bytes_per_block=rebuilt.bytes_per_block,
        quirks=rebuilt.quirks,
        timings={"step_s": time.perf_counter() - began},
    )


def _split(failures: list[Failure], guessed_from: int | None) -> tuple[list[Failure], list[Failure]]:
    """Failures that recorded lengths lead to, and those that rest on a guess of how far requests go on."""
    if guessed_from is None:
        return failures, []
    known = [failure for failure in failures if failure.step is None or failure.step <= guessed_from]
    return known, [failure for failure in failures if failure not in known]


def _undrawn(rebuilt: Rebuilt, expected: Signature | None, failures: list[Failure], guessed_from: int | None) -> bool:
    """Whether the failing step died while it was computed, or with tokens drawn that are not on record, and what that
    led to is not seen here."""
    if expected is None or not rebuilt.steps or rebuilt.steps[-1].completed:
        return False
    seen = any(Signature.of(failure).identity == expected.identity for failure in failures)
    last = rebuilt.steps[-1]
    computed = bool(last.chunks) and expected.identity.kind == FailureKind.EXCEPTION and not failures
    return last.index == expected.location.step and not seen and (computed or guessed_from == last.index)


def _guess(step: int, failures: list[Failure]) -> dict[str, Any]:
    message = f"from step {step} on answers are longer than recorded, and each was taken to run to its limit; "
    if failures:
        message += f"on the way {failures[0].kind.value} ({failures[0].invariant}) at step {failures[0].step}"
    else:
        message += "even so nothing failed"
    return finding("record-ends", message, remedy="--target inference knows how the answers go on", step=step)


def failing_request(rebuilt: Rebuilt, failure: Signature | None) -> Request | None:
    """The request that the failure names, if this dump has it and it comes."""
    name = failure.location.request_id if failure else None
    if name in rebuilt.turned_away:
        return None
    return next((request for request in rebuilt.requests if request.id == name), None)


def last_step(rebuilt: Rebuilt, failure: Signature | None) -> int:
    """The step to replay up to: that of the failure, or the last one recorded."""
    if not rebuilt.steps:
        return 0
    final = rebuilt.steps[-1].index
    step = failure.location.step if failure else None
    return step if step is not None and rebuilt.steps[0].index <= step <= final else final
