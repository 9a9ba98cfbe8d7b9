"""Target `inference`: the model re-computes the failing run, bit for bit where the platform allows.

The way there is cheap and the end is exact. Up to a window before the failure the recorded tokens drive scheduler and
block pool without a model; then the KV of what is running is computed from those tokens in large prefill chunks; then
the window runs step by step, and each next token is the one that the replay drew. Every recorded answer token that is
known is also drawn again from the replay's own logits and compared, those before the window and those of finished
requests included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from dumps.errors import LimitExceeded
from dumps.kv_contents import has_contents
from dumps.schema.reader import Dump
from replay.engine.checks import first_non_finite
from replay.engine.failure import Failure
from replay.engine.kv_store import QUANT_BITS, KVStore
from replay.engine.loaded import Kernels, LoadedModel
from replay.engine.quirks import defects_of
from replay.engine.request import FinishCause, Request
from replay.engine.runner import ModelRunner
from replay.engine.schedule import EngineConfig, StopCheck
from replay.engine.stop_strings import StopStrings
from replay.errors import UnsupportedModel
from replay.report import finding
from replay.signature import Signature
from replay.targets import answers
from replay.targets.cached_prefix import BlockContents, within_reach
from replay.targets.checked import check_findings
from replay.targets.compare import ComparedRunner, Comparison
from replay.targets.door import door_findings
from replay.targets.drive import Deadline, Drive, Emit, RecordedTokens, recorded_stops, shown_without_a_model
from replay.targets.fallbacks import FallbackTrace
from replay.targets.forward import Forward
from replay.targets.kv_distortion import kv_distortion
from replay.targets.kv_restore import KvRestore, why_unusable
from replay.targets.load import LoadedFor
from replay.targets.rebuild import Rebuilt
from replay.targets.result import Run
from replay.targets.schedule import failing_request, last_step
from replay.verdict import Reason

WINDOW_STEPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceOptions:
    """``mode`` "auto" is strict where the platform fingerprint matches, else forced. ``kv`` "auto" computes KV from
    tokens and lays the dump's contents over it before the failing step; "restore" uses them instead of computing, and
    then there is no window and no known answer is drawn again: speed for evidence. ``window`` is in steps. ``compare``
    is False when settings make other tokens on purpose."""

    mode: Literal["auto", "strict", "forced"] = "auto"
    kernels: Kernels = "exact"
    kv: Literal["auto", "restore", "recompute"] = "auto"
    window: int = WINDOW_STEPS
    compare: bool = True
    rederive: bool = False
    beyond: bool = False
    alone: bool = False
    checks: bool = True


def _cache(model: LoadedModel, config: EngineConfig) -> KVStore:
    """Raises `LimitExceeded` when this machine has no room for the pool, `UnsupportedModel` for its quantisation."""
    if config.kv_quant_bits not in QUANT_BITS:
        raise UnsupportedModel(
            f"the KV cache was quantised to {config.kv_quant_bits} bits, which is not supported",
            remedy="--set kv.quant_bits=8 or 0 replays with another cache; --target schedule needs none",
        )
    try:
        return model.kv_store(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            quant_bits=config.kv_quant_bits,
            measure=True,
        )
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
        self._runner = ModelRunner(model, self._kv, digests=True, defects=defects_of(rebuilt.quirks))
        outputs = rebuilt.outputs
        if not options.compare:
            outputs = {name: replace(output, tokens=None) for name, output in outputs.items()}
        self._fallbacks = FallbackTrace(
            dump.state, rebuilt.outputs, strict=loaded.strict, dtype=model.dtype, compare=options.compare
        )
        self._comparison = Comparison(outputs, strict=loaded.strict, dtype=model.dtype, fallbacks=self._fallbacks)
        self._findings = list(loaded.findings)
        self._timings: dict[str, float] = {"load_s": loaded.load_s}
        check = options.compare and options.kv != "restore"
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
            hooks=(self._fallbacks,),
            checks=options.checks,
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
        whole = not self._options.compare or self._mixes_blocks
        window = first if whole else max(first, last + 1 - self._options.window)
        window = last if self._restoring else window
        # A request whose slot in the recorder was taken again has no token ids left, and cannot be computed.
        blind = self._last_step_without_ids(last)
        window = max(window, blind + 1)
        self._drive.aim(last)
        self._deadline.start()
        self._emit({"event": "step-started"})
        with self._timed("rebuild_s"):
            self._drive.run_to(min(window, last))
            self._drive.trail.failures = shown_without_a_model(self._drive.trail.failures)
        # Where requests read what others left in blocks, no step can be left out.
        too_late = last if not self._mixes_blocks else first
        if (unknown := self._without_ids_from_here_on(last)) or blind >= too_late:
            return self._cannot_compute(unknown)
        if self._drive.checks is not None:
            # NaN in a freed block would change what those read that read freed blocks when this was recorded.
            poison = self._dump.state.engine.checks or not self._mixes_blocks
            self._drive.checks.computes_into(self._kv, poison=poison)
        reached = self._drive.scheduler.next_step
        with self._timed("fast_forward_s"):
            self._restore(last) if self._restoring else self._fast_forward(window, last)
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
        return [request.id for request in self._ahead(last) if self._rebuilt.outputs[request.id].tokens is None]

    def _ahead(self, last: int) -> list[Request]:
        """Requests that run, wait, or come until ``last``."""
        scheduler = self._drive.scheduler
        ahead = [*scheduler.running, *scheduler.waiting]
        for step in self._rebuilt.steps:
            if scheduler.next_step <= step.index <= last:
                ahead += step.arrived
        return [*ahead, *self._rebuilt.late] if self._options.beyond else ahead

    def _cannot_compute(self, unknown: list[str]) -> Run:
        names = ", ".join(unknown[:3]) or "a request that ran before"
        message = f"the token ids of {names} are not in the dump: the recorder had to use their place again"
        self._findings.append(
            finding(Reason.TOKENS_ABSENT.value, message, remedy="--target schedule replays it from lengths")
        )
        run = self._result(window=0)
        run.missing = Reason.TOKENS_ABSENT
        return run

    @property
    def _restoring(self) -> bool:
        return self._options.kv == "restore"

    def _contents(self) -> KvRestore:
        following = self._drive.scheduler.difference is None and not self._options.beyond
        return KvRestore(self._dump, self._rebuilt, self._kv, following=following)

    def _restore(self, last: int) -> None:
        """Take the KV of what the failing step computes from the dump, and compute what is not in it."""
        scheduler, forward, contents = self._drive.scheduler, self._forward, self._contents()
        plan = contents.plan(scheduler.running, at_failure=scheduler.next_step == last)
        forward.total = sum(request.num_computed for request in plan.computed)
        to_come = [request for request in self._ahead(last) if request not in scheduler.running]
        self._compute(plan.computed, [hit for hit in self._cached(to_come) if not contents.has_blocks(hit.blocks)])
        if scheduler.next_step == last:
            checks = self._drive.checks
            self._findings += contents.lay_over(
                scheduler.running,
                restored=plan.restored,
                computed=plan.computed,
                before=last,
                strict=self._loaded.strict,
                ledger=checks.ledger if checks else None,
            )
        self._findings.append(contents.report(plan))

    def _fast_forward(self, window: int, last: int) -> None:
        """Draw again the answers that the window will not, and compute the KV of what runs."""
        scheduler, forward = self._drive.scheduler, self._forward
        copies = answers.outside(self._rebuilt, scheduler.running, window, last) if self._draws_answers else []
        running = [request for request in scheduler.running if request.num_computed]
        forward.total = sum(c.num_tokens - 1 for c in copies) + sum(r.num_computed for r in running)
        config = self._rebuilt.config
        answers.verify(copies, self._runner, forward, block_size=config.block_size, quant_bits=config.kv_quant_bits)
        end = self._rebuilt.steps[-1].index if self._options.beyond and self._rebuilt.steps else last
        self._compute(running, self._cached(self._ahead(end)))

    def _cached(self, ahead: Sequence[Request]) -> list[Request]:
        """What is cached for requests to come."""
        return within_reach(self._drive.scheduler.cache, ahead, self._rebuilt.outputs)

    def _compute(self, requests: Sequence[Request], cached: Sequence[Request]) -> None:
        """Compute the KV of requests at their recorded blocks, and cached blocks."""
        drive, steps = self._drive, self._rebuilt.steps
        contents = BlockContents(self._runner, self._forward, steps, drive.scheduler.next_step, drive.checks)
        contents.compute(requests, cached)

    @property
    def _draws_answers(self) -> bool:
        return self._options.compare and not self._options.alone  # the one request is drawn from its start

    def _step_to_the_end(self, last: int) -> None:
        drive = self._drive
        drive.engine.executor = ComparedRunner(self._runner, self._comparison)
        parted = self._parted
        if self._lays_over(last):
            drive.run_to(last, parted, beside=self._options.rederive)
            if not parted() and not drive.ended and drive.scheduler.next_step == last:
                running, strict = drive.scheduler.running, self._loaded.strict
                self._findings += self._contents().lay_over(running, before=last, strict=strict)
        beyond = failing_request(self._rebuilt, self._failure) if self._options.beyond else None
        drive.run_out(last, beyond, parted)

    def _lays_over(self, last: int) -> bool:
        """Whether there are contents of that moment, to be checked against what was computed."""
        if self._options.kv != "auto" or not has_contents(self._dump):
            return False
        problem = why_unusable(self._dump, self._rebuilt, last, unchecked=False)
        if problem:
            self._findings.append(finding("kv-contents-unused", f"recorded KV contents were not used: {problem}"))
        return not problem

    @property
    def _mixes_blocks(self) -> bool:
        """Whether requests may read what others left in their blocks, which their own tokens do not tell."""
        return any(quirk.kind.mixes_blocks for quirk in self._rebuilt.quirks)

    def _parted(self) -> bool:
        return self._comparison.divergence is not None

    def _result(self, *, window: int) -> Run:
        missing = Reason.NONE if self._rebuilt.steps or self._rebuilt.stalls else Reason.STEPS_ABSENT
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
            findings=[
                *door_findings(self._rebuilt.turned_away),
                *drive.trail.findings,
                *self._findings,
                *kv_distortion(self._kv),
                *self._fallbacks.findings(),
                *check_findings(drive.checks, drive.trail.failures),
            ],
            quirks=self._rebuilt.quirks,
            timings=self._timings,
            environment=self._loaded.model.numerics,
            digests=self._comparison.digests,
            nll=self._comparison.nll,
            fallbacks=self._fallbacks.to_json(),
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = self._deadline.clock()
        try:
            yield
        finally:
            self._timings[name] = self._deadline.clock() - began
