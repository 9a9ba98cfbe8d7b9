"""Compares what a replay draws with what was recorded, and keeps the first difference.

The replay's tokens come from its own logits. In strict mode they are also what the replay goes on with, so a window
that agrees was run freely. In forced mode rounding may flip an argmax: then the recorded token is fed, and the
difference counts as noise while the recorded token lies within a stated distance of the top.
"""

from __future__ import annotations

from dataclasses import replace

from replay.divergence import NOISE, Divergence, token_cause
from replay.engine.fast_forward import TokenCheck
from replay.engine.request import FinishCause, Request
from replay.engine.runner import ModelRunner
from replay.engine.schedule import Chunk, Sample, StepPlan
from replay.targets.compare_counts import Counts
from replay.targets.fallbacks import FallbackTrace, exit_difference
from replay.targets.rebuild import RebuiltOutputs


class Comparison:
    """Collects token by token. `divergence` is the earliest difference in step order that rounding does not explain.

    `digests` holds the logits digest of each request's last compared draw, `nll` the negative log-likelihood of
    recorded tokens by request and index in its answer, those that could only be fed included.
    """

    def __init__(
        self, outputs: RebuiltOutputs, *, strict: bool, dtype: str, fallbacks: FallbackTrace | None = None
    ) -> None:
        self.counts = Counts()
        self.divergence: Divergence | None = None
        self.digests: dict[str, int] = {}
        self.nll: dict[str, dict[int, float]] = {}
        self._compared: set[tuple[str, int]] = set()
        self._outputs = outputs
        self._strict = strict
        self._dtype = dtype
        self._fallbacks = fallbacks

    def recorded(self, request: Request, output_index: int) -> int | None:
        """The token that the dead process drew there, or None where the record does not say."""
        tokens = self._outputs[request.id].tokens
        return tokens[output_index] if tokens is not None and output_index < len(tokens) else None

    def digests_wanted(self, request: Request, *, last: int) -> set[int]:
        """The positions whose logits digests a fast-forward up to token ``last`` has to make: those that there is one
        to compare with, and the last, which the report shows."""
        recorded = self._outputs[request.id].digests if self._strict else ()
        return {last, *(request.num_prompt + index for index in recorded)}

    def token(self, request: Request, output_index: int, sample: Sample) -> Sample:
        """Compare one drawn token, and whether it ended its answer. Returns what the replay goes on with."""
        compared = self._token(request, output_index, sample)
        if not sample.finite or self.recorded(request, output_index) is None:
            return compared
        if sample.nll is not None:
            self.nll.setdefault(request.id, {})[output_index] = sample.nll
        return self._exit(request, output_index, compared)

    def _exit(self, request: Request, output_index: int, sample: Sample) -> Sample:
        """Compare an early exit. In forced mode the recorded one is fed."""
        output = self._outputs[request.id]
        difference = exit_difference(request, output, output_index, sample, dtype=self._dtype)
        if difference is None:
            return sample
        if difference.noise and not self._strict:
            self.counts.noise += 1
        else:
            recorded, replayed = difference.recorded, difference.replayed
            self._differ("finish", request, output_index, recorded, replayed, sample, "corruption")
        return sample if self._strict else replace(sample, early_exit=difference.recorded == FinishCause.EARLY_EXIT)

    def _token(self, request: Request, output_index: int, sample: Sample) -> Sample:
        if sample.digest is not None:
            self.digests[request.id] = sample.digest
        recorded = self.recorded(request, output_index)
        if recorded is None or not sample.finite:
            return sample
        if not self._strict and request.sampling.temperature > 0:
            # The distance to the top says nothing about a draw with noise, so this can only be fed.
            self.counts.not_compared += 1
            return replace(sample, token=recorded)
        self._count(request, output_index)
        if sample.token != recorded:
            cause = token_cause(strict=self._strict, gap=sample.gap, dtype=self._dtype)
            if cause == "noise":
                self.counts.noise += 1
            else:
                self._differ("token", request, output_index, str(recorded), str(sample.token), sample, cause)
            return sample if self._strict else replace(sample, token=recorded)
        self._digest(request, output_index, sample)
        return sample

    def _count(self, request: Request, output_index: int) -> None:
        # A preempted request is computed again, and some of its tokens are drawn twice.
        self._compared.add((request.id, output_index))
        self.counts.tokens = len(self._compared)

    def checks(self, request: Request, checks: list[TokenCheck]) -> None:
        """Compare what a fast-forward drew."""
        if self._fallbacks is not None:
            self._fallbacks.checked(request, checks)
        for check in checks:
            self.token(request, check.position - request.num_prompt, check.sample)

    def _digest(self, request: Request, output_index: int, sample: Sample) -> None:
        recorded = self._outputs[request.id].digests.get(output_index)
        if not self._strict or sample.digest is None or recorded is None:
            return
        self.counts.digests += 1
        if recorded != sample.digest:
            self._differ(
                "logits", request, output_index, f"{recorded:016x}", f"{sample.digest:016x}", sample, "corruption"
            )

    def _differ(
        self, kind: str, request: Request, index: int, recorded: str, replayed: str, sample: Sample, cause: str
    ) -> None:
        found = Divergence(
            kind=kind,
            request_id=request.id,
            step=self._outputs[request.id].step_of(index),
            position=request.num_prompt + index,
            output_index=index,
            recorded=recorded,
            replayed=replayed,
            margin=sample.margin,
            gap=sample.gap,
            cause=cause,
        )
        if self.divergence is None or _when(found) < _when(self.divergence):
            self.divergence = found


class ComparedRunner:
    """The model as an executor whose every draw goes through a comparison."""

    def __init__(self, runner: ModelRunner, comparison: Comparison) -> None:
        self._runner = runner
        self._comparison = comparison

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        drawing = [chunk for chunk in plan.chunks if chunk.samples]
        wanted = {chunk.request.id: self._wanted(chunk) for chunk in drawing}
        samples = self._runner.execute(
            plan, recorded={key: token for key, token in wanted.items() if token is not None}
        )
        return {
            chunk.request.id: self._comparison.token(chunk.request, chunk.request.num_output, samples[chunk.request.id])
            for chunk in drawing
        }

    def _wanted(self, chunk: Chunk) -> int | None:
        return self._comparison.recorded(chunk.request, chunk.request.num_output)


def tolerance(dtype: str) -> float:
    """How far below the top logit a recorded token may lie in forced mode."""
    return NOISE[dtype]


def _when(divergence: Divergence) -> tuple[int, int]:
    return (-1 if divergence.step is None else divergence.step, divergence.output_index or 0)
