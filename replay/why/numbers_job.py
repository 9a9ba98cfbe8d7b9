"""Computes the recorded tokens of a dump in three ways: each request alone, and all of them in the recorded batches,
with exact and with stock kernels. Brings torch.

Each way is fed the recorded tokens, whatever it draws, so that all of them can be compared at every token. Damage that
the dump holds in KV contents takes no part: what is asked is what the tokens give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from dumps.schema.reader import Dump, open_dump
from replay.engine.fast_forward import TokenCheck, fast_forward
from replay.engine.quirks import defects_of
from replay.engine.request import FinishCause, Request
from replay.engine.runner import ModelRunner
from replay.engine.schedule import Sample, StepPlan
from replay.errors import ReplayError
from replay.isolate.worker import Emit
from replay.models.locate import locate
from replay.signature import Signature
from replay.targets.admit import admit
from replay.targets.cached_prefix import BlockContents, within_reach
from replay.targets.compare import Comparison
from replay.targets.drive import Deadline, Drive, recorded_stops
from replay.targets.expected import own_signature
from replay.targets.forward import Forward
from replay.targets.load import LoadedFor, load_for
from replay.targets.rebuild import UNKNOWN_TOKEN, Rebuilt, RebuiltOutputs, rebuild
from replay.targets.schedule import last_step
from replay.targets.settings import Overrides
from replay.why.draws import Draw, Place, Recorded, compare, compare_recorded

Load = Callable[..., Any]


def run_numbers(job: dict[str, Any], emit: Emit, load: Load) -> dict[str, Any]:
    """The three computations of ``job["dump"]``, compared; or ``refused``, a sentence on why there are none."""
    try:
        emit({"event": "progress", "stage": "open", "done": 0, "total": None})
        with open_dump(Path(job["dump"])) as dump:
            admit(dump.state)
            return _Numbers(dump, job, emit, load).run()
    except (DumpError, ReplayError) as error:
        return {"refused": str(error), "remedy": error.remedy}


class _Numbers:
    def __init__(self, dump: Dump, job: dict[str, Any], emit: Emit, load: Load) -> None:
        self._dump, self._job, self._emit, self._load = dump, job, emit, load
        self._failure: Signature | None = own_signature(dump.state)
        self._deadline = Deadline(job.get("timeout_s"))

    def run(self) -> dict[str, Any]:
        first = self._rebuilt()
        if not first.steps:
            return {"refused": "the steps of the run are not in the dump", "remedy": ""}
        if unknown := [name for name, output in first.outputs.items() if output.tokens is None]:
            return {"refused": f"the token ids of {', '.join(unknown[:3])} are not in the dump", "remedy": ""}
        exact = self._loaded("exact")
        dtype = exact.model.dtype
        recorded = _recorded(first)
        batch = self._in_batches(exact)
        alone = self._alone(exact)
        stock = self._in_batches(self._loaded("stock"))
        failing = self._failing_place(first)
        return {
            "dtype": dtype,
            "strict": exact.strict,
            "recorded_kernels": self._dump.state.engine.kernels,
            "tokens": len(batch),
            "alone_and_batch": compare(alone, batch, recorded, dtype=dtype, exact=True).to_json(),
            "batch_and_stock": compare(batch, stock, recorded, dtype=dtype, exact=False).to_json(),
            "record_and_batch": compare_recorded(batch, recorded, dtype=dtype, exact=exact.strict).to_json(),
            "record_and_alone": compare_recorded(alone, recorded, dtype=dtype, exact=exact.strict).to_json(),
            "failing_draw": None
            if failing is None
            else {
                "request_id": failing[0],
                "output_index": failing[1],
                **{
                    name: asdict(draws[failing]) if failing in draws else None
                    for name, draws in (("alone", alone), ("batch", batch), ("stock", stock))
                },
            },
        }

    def _rebuilt(self) -> Rebuilt:
        return rebuild(self._dump.state, Overrides())

    def _loaded(self, kernels: str) -> LoadedFor:
        state = self._dump.state
        folder = locate(
            name=state.model.name or state.active_model or None,
            fingerprint=state.model.weights_fingerprint or None,
            explicit=Path(self._job["model"]) if self._job.get("model") else None,
            beside=(self._dump.path.parent,),
        )
        return load_for(
            self._dump,
            folder,
            dtype=state.model.dtype,
            mode="auto",
            kernels=kernels,  # type: ignore[arg-type]
            device=self._job.get("device", "auto"),
            emit=self._emit,
            load=self._load,
        )

    def _begin(self) -> None:
        self._emit({"event": "step-started"})
        self._deadline.start()

    def _in_batches(self, loaded: LoadedFor) -> dict[Place, Draw]:
        """Every recorded step as it was, on the recorded blocks, with the defects that were in force."""
        self._begin()
        rebuilt, model = self._rebuilt(), loaded.model
        config, defects = rebuilt.config, defects_of(rebuilt.quirks)
        kv = model.kv_store(num_blocks=config.num_blocks, block_size=config.block_size, quant_bits=config.kv_quant_bits)
        runner = ModelRunner(model, kv, digests=True, defects=defects)
        fed = FedTokens(runner, rebuilt.outputs)
        drive = Drive(
            rebuilt,
            executor=fed,
            stop_check=recorded_stops(rebuilt.outputs),
            deadline=self._deadline,
            emit=self._emit,
            bytes_per_block=kv.bytes_per_block,
            checks=True,
        )
        assert drive.checks is not None
        drive.checks.computes_into(kv, poison=self._dump.state.engine.checks)
        self._fill(rebuilt, drive, runner)
        drive.run_out(last_step(rebuilt, self._failure), None)
        return fed.draws

    def _fill(self, rebuilt: Rebuilt, drive: Drive, runner: ModelRunner) -> None:
        """Compute what was in the cache where the record begins."""
        outputs, scheduler = rebuilt.outputs, drive.scheduler
        forward = Forward(
            Comparison(outputs, strict=False, dtype=runner.model.dtype),
            deadline=self._deadline,
            emit=self._emit,
            check=False,
        )
        ahead = [*scheduler.running, *scheduler.waiting, *(one for step in rebuilt.steps for one in step.arrived)]
        contents = BlockContents(runner, forward, rebuilt.steps, scheduler.next_step, drive.checks)
        running = [request for request in scheduler.running if request.num_computed]
        contents.compute(running, within_reach(scheduler.cache, ahead, outputs))

    def _alone(self, loaded: LoadedFor) -> dict[Place, Draw]:
        """Each request in a cache of its own, its tokens as one prompt."""
        rebuilt, model = self._rebuilt(), loaded.model
        size, bits = rebuilt.config.block_size, rebuilt.config.kv_quant_bits
        draws: dict[Place, Draw] = {}
        for request in rebuilt.requests:
            self._deadline.check(f"request {request.id} alone")
            output = rebuilt.outputs[request.id]
            known = [*request.tokens[: request.num_prompt], *(output.tokens or ())]
            # One more, whatever it is: the failing draw is the one behind the last token.
            copy = replace(request, tokens=[*known, 0], num_computed=0, blocks=list(range(-(-len(known) // size))))
            kv = model.kv_store(num_blocks=len(copy.blocks), block_size=size, quant_bits=bits)
            runner = ModelRunner(model, kv, digests=True, defects=defects_of(rebuilt.quirks))
            for check in _drawn_alone(runner, copy, len(known)):
                index = check.position - request.num_prompt
                there = index < output.num_tokens
                draws[request.id, index] = _draw(check.sample, output.step_of(index), with_gap=there)
        return draws

    def _failing_place(self, rebuilt: Rebuilt) -> Place | None:
        """The draw that was not finite when it was recorded."""
        failure = self._failure
        if failure is None or failure.identity.kind != "non-finite" or failure.location.position is None:
            return None
        request = next((one for one in rebuilt.requests if one.id == failure.location.request_id), None)
        return None if request is None else (request.id, failure.location.position - request.num_prompt)


class FedTokens:
    """The model as an executor that draws, keeps what it drew, and goes on with what was recorded."""

    def __init__(self, runner: ModelRunner, outputs: RebuiltOutputs) -> None:
        self.draws: dict[Place, Draw] = {}
        self._runner, self._outputs = runner, outputs

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        drawing = {chunk.request.id: chunk.request for chunk in plan.chunks if chunk.samples}
        wanted = {name: self._token(request) for name, request in drawing.items()}
        samples = self._runner.execute(plan, recorded={n: token for n, token in wanted.items() if token is not None})
        return {name: self._kept(request, samples[name], plan.index) for name, request in drawing.items()}

    def _token(self, request: Request) -> int | None:
        tokens = self._outputs[request.id].tokens or ()
        return tokens[request.num_output] if request.num_output < len(tokens) else None

    def _kept(self, request: Request, sample: Sample, step: int) -> Sample:
        index, output, token = request.num_output, self._outputs[request.id], self._token(request)
        self.draws[request.id, index] = _draw(sample, step, with_gap=token is not None)
        if token is None:
            failed = output.cause is FinishCause.NON_FINITE
            return replace(sample, token=UNKNOWN_TOKEN if failed else sample.token, finite=sample.finite and not failed)
        ends = output.cause is FinishCause.EARLY_EXIT and index + 1 == output.num_tokens
        return replace(sample, token=token, finite=True, early_exit=ends)


def _drawn_alone(runner: ModelRunner, request: Request, upto: int) -> list[TokenCheck]:
    """All that the request draws up to and with position ``upto``, the last by itself: its step may be the failure."""
    checks: list[TokenCheck] = []
    for start, stop in ((0, upto - 1), (upto - 1, upto)):
        try:
            checks += fast_forward(runner, request, stop, check_from=request.num_prompt, start=start)
        except Exception:  # of the model or the sampler, of any kind; what is not drawn is not compared
            break
    return checks


def _draw(sample: Sample, step: int | None, *, with_gap: bool) -> Draw:
    assert sample.digest is not None
    return Draw(
        token=sample.token,
        digest=sample.digest,
        finite=sample.finite,
        margin=sample.margin,
        gap=sample.gap if with_gap else None,
        step=step,
    )


def _recorded(rebuilt: Rebuilt) -> Recorded:
    outputs = rebuilt.outputs
    steps = {
        (name, index): step
        for name, output in outputs.items()
        for index in range(output.num_tokens)
        if (step := output.step_of(index)) is not None
    }
    return Recorded(
        tokens={(name, i): token for name, output in outputs.items() for i, token in enumerate(output.tokens or ())},
        digests={(name, i): digest for name, output in outputs.items() for i, digest in output.digests.items()},
        sampled=frozenset(one.id for one in rebuilt.requests if one.sampling.temperature > 0),
        steps=steps,
    )
