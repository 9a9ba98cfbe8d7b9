"""Target `inference`: the model re-computes the failing run, bit for bit where the platform allows.

The way there is cheap and the end is exact. Up to a window before the failure the recorded tokens drive scheduler and
block pool without a model; then the KV of what is running is computed from those tokens in large prefill chunks; then
the window runs step by step, and each next token is the one that the replay drew. Every recorded answer token that is
known is also drawn again from the replay's own logits and compared, those before the window and those of finished
requests included.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from dumps.errors import LimitExceeded
from dumps.fingerprint import fingerprint, platform_pairs
from dumps.schema.reader import Dump
from replay.engine.checks import first_non_finite
from replay.engine.detokenize import Vocabulary, load_tokenizer
from replay.engine.failure import Failure
from replay.engine.kv_store import KVStore
from replay.engine.request import FinishCause, Request
from replay.engine.runner import ModelRunner
from replay.engine.schedule import EngineConfig, StopCheck
from replay.engine.stop_strings import StopStrings
from replay.engine.weights import LoadedModel, load_model
from replay.report import finding
from replay.signature import Signature
from replay.targets import answers, kv_restore
from replay.targets.compare import ComparedRunner, Comparison, tolerance
from replay.targets.drive import Deadline, Drive, Emit, RecordedTokens, recorded_stops, shown_without_a_model
from replay.targets.forward import Forward, written_by
from replay.targets.rebuild import Rebuilt
from replay.targets.result import Run
from replay.targets.schedule import failing_request, last_step
from replay.verdict import Reason

WINDOW_STEPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceOptions:
    """``mode`` "auto" is strict where the platform fingerprint matches, else forced. ``kv`` "auto" restores contents
    that the dump has. ``window`` is in steps. ``compare`` is False when settings make other tokens on purpose."""

    mode: Literal["auto", "strict", "forced"] = "auto"
    kernels: Literal["exact", "stock"] = "exact"
    kv: Literal["auto", "restore", "recompute"] = "auto"
    device: str = "cpu"
    window: int = WINDOW_STEPS
    compare: bool = True
    rederive: bool = False
    beyond: bool = False
    alone: bool = False


@dataclass(slots=True)
class LoadedFor:
    """A model that is ready for a dump, and how exactly it can speak about it."""

    model: LoadedModel
    vocabulary: Vocabulary
    strict: bool
    findings: list[dict[str, Any]] = field(default_factory=list)
    load_s: float = 0.0


def load_for(dump: Dump, folder: Path, *, dtype: str, options: InferenceOptions, emit: Emit) -> LoadedFor:
    """Load the weights and decide between strict and forced.

    Raises `ModelUnavailable` and `UnsupportedModel`.
    """
    emit({"event": "progress", "stage": "load", "done": 0, "total": None})
    began = time.perf_counter()
    if threads := dump.state.engine.num_threads:  # part of the platform fingerprint
        torch.set_num_threads(min(threads, len(os.sched_getaffinity(0))))
    model = load_model(folder, dtype=dtype, kernels=options.kernels, device=options.device)
    vocabulary = Vocabulary(load_tokenizer(folder))
    manifest = dump.state.manifest
    ours = platform_pairs(model.numerics)
    same = bool(manifest.platform_fingerprint) and fingerprint(ours) == manifest.platform_fingerprint
    strict = options.mode == "strict" or (options.mode == "auto" and same)
    loaded = LoadedFor(model, vocabulary, strict)
    if not same:
        theirs = {pair.key: pair.value for pair in manifest.platform}
        names = sorted(k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k))
        shown = "; ".join(f"{k}: recorded {theirs.get(k, 'unknown')}, here {ours.get(k, 'unknown')}" for k in names[:4])
        unexplained = "the recorded fingerprint is not that of the recorded facts" if theirs else "no platform recorded"
        consequence = (
            "strict mode was asked for, so any difference in bits counts"
            if strict
            else f"tokens are forced; one may lie {tolerance(model.dtype):g} below the top logit"
        )
        loaded.findings.append(
            finding(
                "platform-differs",
                f"bits can differ here ({shown or unexplained}): {consequence}",
                keys=names,
            )
        )
    loaded.load_s = time.perf_counter() - began
    return loaded


def _cache(model: LoadedModel, config: EngineConfig) -> KVStore:
    """Raises `LimitExceeded` when this machine has no room for the pool."""
    try:
        return model.kv_store(num_blocks=config.num_blocks, block_size=config.block_size)
    except (RuntimeError, MemoryError) as error:  # torch has no class of its own for memory of the CPU
        raise LimitExceeded(
            f"a KV pool of {config.num_blocks} blocks of {config.block_size} tokens does not fit into this machine",
            remedy="use --target schedule, or --set kv.num_blocks to a pool that fits",
        ) from error


class _Locate:
    """Finds the first non-finite value while the failing request still holds its blocks."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv

    def explain(self, failure: Failure, request: Request) -> Failure:
        return replace(failure, non_finite=first_non_finite(self._kv, [request]))


class InferenceReplay:
    """One replay of a dump on a loaded model, up to the dump's own ``failure``."""

    def __init__(
        self,
        dump: Dump,
        rebuilt: Rebuilt,
        loaded: LoadedFor,
        *,
        options: InferenceOptions,
        failure: Signature | None,
        deadline: Deadline,
        emit: Emit,
    ) -> None:
        self._dump, self._rebuilt, self._loaded, self._options = dump, rebuilt, loaded, options
        self._failure, self._deadline, self._emit = failure, deadline, emit
        model = loaded.model
        self._kv = _cache(model, rebuilt.config)
        # Also when none were recorded: the report's digests tell two replays of one dump apart.
        self._runner = ModelRunner(model, self._kv, digests=True)
        outputs = rebuilt.outputs
        if not options.compare:
            outputs = {name: replace(output, tokens=None) for name, output in outputs.items()}
        self._comparison = Comparison(outputs, strict=loaded.strict, dtype=model.dtype)
        self._findings = list(loaded.findings)
        self._timings: dict[str, float] = {"load_s": loaded.load_s}
        check = options.compare
        self._forward = Forward(self._comparison, deadline=deadline, emit=emit, check=check)
        self._drive = Drive(
            rebuilt,
            executor=RecordedTokens(rebuilt.outputs),
            stop_check=self._stop_check(StopStrings(loaded.vocabulary)),
            deadline=deadline,
            emit=emit,
            bytes_per_block=self._kv.bytes_per_block,
            rederive=options.rederive,
            watch=_Locate(self._kv),
        )

    def _stop_check(self, by_text: StopStrings) -> StopCheck:
        """Ends requests by their text, and those without token ids where the record says that theirs ended them."""
        outputs = self._rebuilt.outputs
        by_record = recorded_stops(outputs)

        def check(request: Request) -> FinishCause | None:
            return by_record(request) if outputs[request.id].tokens is None else by_text(request)

        return check

    def run(self) -> Run:
        """Raises `BudgetSpent`, and `InvalidState` when recorded KV contents do not fit the cache."""
        last = last_step(self._rebuilt, self._failure)
        first = self._rebuilt.steps[0].index if self._rebuilt.steps else 0
        window = max(first, last + 1 - self._options.window) if self._options.compare else first
        # A request whose slot in the recorder was taken again has no token ids left, and cannot be computed.
        blind = self._last_step_without_ids(last)
        window = max(window, blind + 1)
        self._drive.aim(last)
        self._deadline.start()
        self._emit({"event": "step-started"})
        with self._timed("rebuild_s"):
            self._drive.run_to(min(window, last))
            self._drive.trail.failures = shown_without_a_model(self._drive.trail.failures)
        if (unknown := self._without_ids_from_here_on(last)) or blind >= last:
            return self._cannot_compute(unknown)
        reached = self._drive.scheduler.next_step
        with self._timed("fast_forward_s"):
            self._fast_forward(window, last)
        with self._timed("step_s"):
            self._step_to_the_end(last)
        return self._result(window=max(0, self._drive.scheduler.next_step - reached))

    def _last_step_without_ids(self, last: int) -> int:
        """The last step up to ``last`` in which a request ran whose token ids are not known; -1 without one."""
        outputs = self._rebuilt.outputs
        return max(
            (
                step.index
                for step in self._rebuilt.steps
                if step.index <= last and any(outputs[chunk.request.id].tokens is None for chunk in step.chunks)
            ),
            default=-1,
        )

    def _without_ids_from_here_on(self, last: int) -> list[str]:
        """Ids of requests that run, wait, or come until ``last``, and whose tokens are not known."""
        scheduler = self._drive.scheduler
        ahead = [*scheduler.running, *scheduler.waiting]
        for step in self._rebuilt.steps:
            if scheduler.next_step <= step.index <= last:
                ahead += step.arrived
        return [request.id for request in ahead if self._rebuilt.outputs[request.id].tokens is None]

    def _cannot_compute(self, unknown: list[str]) -> Run:
        names = ", ".join(unknown[:3]) or "a request of the failing step"
        message = f"the token ids of {names} are not in the dump: the recorder had to use their place again"
        self._findings.append(
            finding(Reason.TOKENS_ABSENT.value, message, remedy="--target schedule replays it from lengths")
        )
        run = self._result(window=0)
        run.missing = Reason.TOKENS_ABSENT
        return run

    def _fast_forward(self, window: int, last: int) -> None:
        """Draw again the answers that the window will not, and compute the KV of what runs."""
        scheduler, forward = self._drive.scheduler, self._forward
        copies = answers.outside(self._rebuilt, scheduler.running, window, last) if self._draws_answers else []
        running = [request for request in scheduler.running if request.num_computed]
        forward.total = sum(c.num_tokens - 1 for c in copies) + sum(r.num_computed for r in running)
        answers.verify(copies, self._loaded.model, forward, block_size=self._rebuilt.config.block_size)
        for request in running:  # at its recorded blocks
            writers = written_by(self._rebuilt.steps, request, before=scheduler.next_step)
            forward.run(self._runner, request, request.num_computed, writers)

    @property
    def _draws_answers(self) -> bool:
        return self._options.compare and not self._options.alone  # the one request is drawn from its start

    def _step_to_the_end(self, last: int) -> None:
        drive = self._drive
        drive.engine.executor = ComparedRunner(self._runner, self._comparison)
        parted = self._parted
        if self._restores:
            drive.run_to(last, parted)
            if not parted() and not drive.ended and drive.scheduler.next_step == last:
                running, strict = drive.scheduler.running, self._loaded.strict
                self._findings += kv_restore.restore(self._dump, self._kv, running, strict=strict)
        beyond = failing_request(self._rebuilt, self._failure) if self._options.beyond else None
        drive.run_out(last, beyond, parted)

    @property
    def _restores(self) -> bool:
        return self._options.kv != "recompute" and kv_restore.has_contents(self._dump)

    def _parted(self) -> bool:
        return self._comparison.divergence is not None

    def _result(self, *, window: int) -> Run:
        missing = Reason.NONE
        if self._options.kv == "restore" and not kv_restore.has_contents(self._dump):
            missing = Reason.KV_CONTENTS_ABSENT
        elif not self._rebuilt.steps:
            missing = Reason.STEPS_ABSENT
        drive, scheduler = self._drive, self._drive.scheduler
        return Run(
            requests=self._rebuilt.requests,
            outputs=self._rebuilt.outputs,
            failures=drive.trail.failures,
            mode="strict" if self._loaded.strict else "forced",
            kernels=self._loaded.model.kernels,
            missing=missing,
            divergence=self._comparison.divergence,
            difference=scheduler.difference,
            counts=self._comparison.counts,
            steps=drive.trail.steps,
            window=window,
            fast_forwarded=self._forward.done,
            used_blocks=drive.trail.peak_used_blocks,
            num_blocks=self._rebuilt.config.num_blocks,
            bytes_per_block=self._kv.bytes_per_block,
            findings=self._findings,
            timings=self._timings,
            environment=self._loaded.model.numerics,
            digests=self._comparison.digests,
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._timings[name] = time.perf_counter() - began
