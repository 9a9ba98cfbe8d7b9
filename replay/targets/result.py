"""What a target gives back: facts only. The job turns them into a verdict and a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replay.divergence import Divergence
from replay.engine.failure import Failure
from replay.engine.quirks import Quirk
from replay.engine.recorded import ScheduleDifference
from replay.engine.request import Request
from replay.targets.compare_counts import Counts
from replay.targets.rebuild import RebuiltOutputs
from replay.verdict import Reason


@dataclass(slots=True, kw_only=True)
class Run:
    """One replay of one dump.

    ``window`` is the number of steps whose tokens the replay drew and went on with by itself; ``fast_forwarded``
    counts tokens that were teacher-forced to get there. ``digests`` holds the logits digest of each request's last
    drawn token. ``quirks`` are those that were in force. ``nll`` holds the negative log-likelihood of each recorded
    token that the replay has logits for, by request id and index in its answer; ``fallbacks`` the decisions of early
    exit to go on, counted and one by one. ``answers`` says which answers a modified replay changed.
    """

    requests: tuple[Request, ...]
    outputs: RebuiltOutputs
    failures: list[Failure]
    mode: str
    kernels: str = "none"
    missing: Reason = Reason.NONE
    divergence: Divergence | None = None
    difference: ScheduleDifference | None = None
    counts: Counts = field(default_factory=Counts)
    steps: int = 0
    window: int = 0
    fast_forwarded: int = 0
    used_blocks: int = 0
    num_blocks: int = 0
    bytes_per_block: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    digests: dict[str, int] = field(default_factory=dict)
    quirks: tuple[Quirk, ...] = ()
    nll: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    fallbacks: dict[str, Any] | None = None
    answers: dict[str, Any] | None = None


def first_divergence(
    drawn: Divergence | None, schedule: ScheduleDifference | None, *, before: int
) -> Divergence | None:
    """The earlier of a difference in what was drawn and one in the schedule.

    Only a schedule that differs before step ``before``, that of the failure, describes another run. In that step it is
    the failure itself that is another one, and other physical blocks (``ids``) leave every choice valid.
    """
    if schedule is None or schedule.what == "ids" or schedule.step >= before:
        return drawn
    if drawn is not None and (drawn.step is None or drawn.step < schedule.step):
        return drawn
    return Divergence(
        kind="finish" if schedule.what == "end" else "schedule",
        request_id=schedule.request_id,
        step=schedule.step,
        recorded=schedule.recorded,
        replayed=schedule.replayed,
    )
