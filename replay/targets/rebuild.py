"""From a dump to the objects that a scheduler runs on.

A request starts with the tokens it had before the first recorded step. What it drew afterwards is kept beside it, in
`RecordedOutput`: to drive a replay without a model, and to be compared with what a replay with one draws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from dumps.errors import InvalidState, LimitExceeded
from dumps.prefix_hash import CachedBlock
from dumps.schema import state_pb2 as pb
from dumps.tensors import from_le32
from replay.engine.quirks import Quirk
from replay.engine.recorded import RecordedStep, StartState
from replay.engine.request import FinishCause, FinishReason, InternalFlags, Request, SamplingParams, Status
from replay.engine.schedule import Chunk, EngineConfig, Exhausted, Finish, OnExhausted, Outcome, PrefixHit
from replay.errors import UsageError
from replay.targets.admit import REMEDY, check_sizes
from replay.targets.door import checked_config, turned_away
from replay.targets.quirks import quirks_in_force
from replay.targets.settings import Overrides

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
UNKNOWN_TOKEN = -1  # stands for a token whose id was not recorded; equals no real one


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOutput:
    """The answer of one request as the dead process recorded it.

    ``tokens`` is None when ids were not recorded. ``digests`` are blake2b-64 of logits rows, by output index.
    ``drawn_before`` of the tokens are older than the first recorded step; ``steps`` are those that drew the others.
    """

    num_tokens: int
    drawn_before: int
    steps: tuple[int, ...]
    tokens: tuple[int, ...] | None
    digests: dict[int, int]
    cause: FinishCause | None

    def step_of(self, output_index: int) -> int | None:
        """The step that drew a token of the answer, None when that lies before the record."""
        drawn = output_index - self.drawn_before
        return self.steps[drawn] if 0 <= drawn < len(self.steps) else None


RebuiltOutputs = dict[str, RecordedOutput]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """Everything a target needs, fresh for one run: the engine changes the requests.

    ``turned_away`` says by id which of the requests do not come, and why. ``stalls`` says that the record ends because
    nothing could go on; ``late`` are the requests that had come by then, after the last step.
    """

    config: EngineConfig
    requests: tuple[Request, ...]
    outputs: RebuiltOutputs
    steps: tuple[RecordedStep, ...]
    start: StartState | None
    eos_token_ids: tuple[int, ...]
    bytes_per_block: int
    quirks: tuple[Quirk, ...] = ()
    turned_away: Mapping[str, str] = field(default_factory=dict)
    late: tuple[Request, ...] = ()
    stalls: bool = False

    @property
    def has_tokens(self) -> bool:
        """Whether the ids of any request's tokens were recorded."""
        return not self.outputs or any(output.tokens is not None for output in self.outputs.values())


def rebuild(state: pb.RuntimeState, overrides: Overrides) -> Rebuilt:
    """Resolve indices, bytes and enums of a dump's head.

    Raises:
        UsageError: an override does not fit the recorded state.
        LimitExceeded: a pool or a request is larger than any real one.
        InvalidState: an index or a name in the dump refers to nothing.
    """
    try:
        return _rebuild(state, overrides)
    except (ValueError, IndexError) as error:
        raise InvalidState(
            f"the dump's requests, steps and blocks do not fit together: {error}",
            remedy=REMEDY,
        ) from error


def _rebuild(state: pb.RuntimeState, overrides: Overrides) -> Rebuilt:
    config = checked_config(overrides.config(_config(state)), state, overrides.quirks_off)
    longest = max((r.num_prompt_tokens + r.num_output_tokens for r in state.requests), default=0)
    try:
        check_sizes(num_blocks=config.num_blocks, block_size=config.block_size, longest=longest)
    except LimitExceeded as error:
        if not overrides.values.keys() & {"kv.num_blocks", "kv.block_size"}:
            raise
        raise UsageError(f"--set kv.num_blocks and kv.block_size: {error}", remedy=error.remedy) from error
    samples = _samples(state)
    requests: list[Request] = []
    outputs: RebuiltOutputs = {}
    for index, recorded in enumerate(state.requests):
        request, output = _request(state, index, recorded, samples, overrides)
        requests.append(request)
        outputs[request.id] = output
    turned = turned_away(requests, config, state, overrides.quirks_off)
    start = _start(state, requests, config, overrides)
    model = state.model
    kv = state.kv
    per_vector = kv.head_dim * DTYPE_BYTES.get(kv.dtype, 0)
    if config.kv_quant_bits:  # and a scale in float32
        per_vector = kv.head_dim * config.kv_quant_bits // 8 + 4
    per_slot = 2 * kv.num_layers * kv.num_kv_heads * per_vector
    return Rebuilt(
        config=config,
        requests=tuple(requests),
        outputs=outputs,
        steps=tuple(_step(step, requests, turned) for step in state.steps),
        turned_away=turned,
        start=start,
        eos_token_ids=tuple(model.eos_token_ids),
        quirks=quirks_in_force(state, overrides.quirks_off),
        bytes_per_block=per_slot * config.block_size,
    )


def _config(state: pb.RuntimeState) -> EngineConfig:
    engine = state.engine
    return EngineConfig(
        num_blocks=engine.num_blocks,
        block_size=engine.block_size,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        on_kv_exhausted=OnExhausted(engine.on_kv_exhausted),
        prefix_cache=engine.prefix_cache,
        kv_quant_bits=engine.kv_quant_bits,
    )


@dataclass(slots=True)
class _Samples:
    """What the recorded steps tell of requests: tokens drawn in them, where each was when the first was drawn, and the
    cause of its end."""

    steps: dict[int, list[int]]
    digests: dict[int, list[int | None]]
    first_end: dict[int, int]
    furthest: dict[int, int]
    ends: dict[int, str]


def _samples(state: pb.RuntimeState) -> _Samples:
    result = _Samples(defaultdict(list), defaultdict(list), {}, {}, {})
    for step in state.steps:
        for chunk in step.scheduled:
            end = chunk.start + chunk.num_tokens
            result.furthest[chunk.request] = max(end, result.furthest.get(chunk.request, 0))
            if chunk.sampled:
                result.steps[chunk.request].append(step.index)
                known = chunk.HasField("logits_digest")
                result.digests[chunk.request].append(chunk.logits_digest if known else None)
                result.first_end.setdefault(chunk.request, end)
        for finish in step.finished:
            result.ends.setdefault(finish.request, finish.cause)
    return result


def _request(
    state: pb.RuntimeState, index: int, recorded: pb.Request, samples: _Samples, overrides: Overrides
) -> tuple[Request, RecordedOutput]:
    has_prompt = recorded.HasField("prompt_token_ids")
    known = has_prompt and recorded.HasField("output_token_ids")
    steps, num_output, num_prompt = samples.steps.get(index, []), recorded.num_output_tokens, recorded.num_prompt_tokens
    if num_prompt == 0:  # its slot was overwritten after it had finished: lengths follow from the steps
        at_start = {running.request: running.num_output_tokens for running in state.scheduler.start.running}
        before = at_start.get(index, 0)
        end = samples.first_end.get(index, samples.furthest.get(index, 0) + 1)
        num_prompt, num_output = end - before, before + len(steps)
    before = max(0, num_output - len(steps))
    prompt = from_le32(recorded.prompt_token_ids) if has_prompt else []
    if not known and len(prompt) != num_prompt:
        prompt = [UNKNOWN_TOKEN] * num_prompt
    output = from_le32(recorded.output_token_ids) if known else None
    first = output[:before] if output is not None else [UNKNOWN_TOKEN] * before
    # The steps that are kept have their digests; a whole answer's stand with the request.
    drawn = enumerate(samples.digests.get(index, []), start=before)
    digests = {place: digest for place, digest in drawn if digest is not None}
    whole = recorded.output_digests
    digests |= {i // 8: int.from_bytes(whole[i : i + 8], "little") for i in range(0, len(whole), 8)}
    cause = FinishCause(recorded.finish_cause) if recorded.finish_cause else None
    if index in samples.ends:  # one that was aborted after its end has the abort as its cause
        cause = FinishCause(samples.ends[index])
    request = Request(
        id=recorded.id,
        tokens=prompt + first,
        num_prompt=num_prompt,
        sampling=overrides.sampling(_sampling(recorded.sampling), state.model.vocab_size),
        sample_index=recorded.sample_index,
        flags=overrides.flags(_flags(recorded.flags)),
    )
    return request, RecordedOutput(
        num_tokens=num_output,
        drawn_before=before,
        steps=tuple(steps),
        tokens=tuple(output) if output is not None else None,
        digests=digests,
        cause=cause,
    )


def _sampling(recorded: pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        max_tokens=recorded.max_tokens,
        min_tokens=recorded.min_tokens,
        temperature=recorded.temperature,
        top_k=recorded.top_k,
        top_p=recorded.top_p,
        min_p=recorded.min_p,
        presence_penalty=recorded.presence_penalty,
        frequency_penalty=recorded.frequency_penalty,
        repetition_penalty=recorded.repetition_penalty,
        logit_bias=tuple((bias.token_id, bias.bias) for bias in recorded.logit_bias),
        seed=recorded.seed,
        stop=tuple(recorded.stop),
        stop_token_ids=tuple(recorded.stop_token_ids),
        ignore_eos=recorded.ignore_eos,
    )


def _flags(recorded: pb.InternalFlags) -> InternalFlags:
    return InternalFlags(
        early_exit=recorded.early_exit if recorded.HasField("early_exit") else None,
        fallback_trace=recorded.fallback_trace,
    )


def _start(
    state: pb.RuntimeState, requests: list[Request], config: EngineConfig, overrides: Overrides
) -> StartState | None:
    if not state.scheduler.HasField("start"):
        return None
    start = state.scheduler.start
    if "kv.block_size" in overrides.values:
        raise UsageError(
            "--set kv.block_size: this dump starts in the middle of a run, with blocks of the recorded size in use",
            remedy="change the block size of a dump whose record goes back to the first step",
        )
    running = []
    for entry in start.running:
        request = requests[entry.request]
        request.status = Status.RUNNING
        request.num_computed = entry.num_computed_tokens
        request.blocks = from_le32(entry.block_table)
        if request.num_computed > request.num_tokens:
            raise ValueError(
                f"{request.num_computed} tokens of request {request.id} are computed when the record starts, "
                f"and it has {request.num_tokens}"
            )
        if max(request.blocks, default=0) >= config.num_blocks:
            raise UsageError(
                f"--set kv.num_blocks={config.num_blocks}: block {max(request.blocks)} is in use when the record starts"
            )
        running.append(request)
    for index in start.waiting:
        if requests[index].num_output:
            requests[index].status = Status.PREEMPTED
    return StartState(
        free_blocks=tuple(from_le32(start.free_blocks)),
        running=tuple(running),
        waiting=tuple(requests[index] for index in start.waiting),
        cached=tuple(CachedBlock(entry.block, entry.hash, entry.parent) for entry in start.prefix_hashes),
    )


def _blocks(data: bytes) -> tuple[int, ...]:
    return tuple(from_le32(data)) if data else ()  # most chunks need no block


def _step(step: pb.Step, requests: list[Request], turned: Mapping[str, str]) -> RecordedStep:
    def finish(entry: pb.Finished) -> Finish:
        return Finish(requests[entry.request], FinishReason(entry.reason), FinishCause(entry.cause))

    return RecordedStep(
        index=step.index,
        chunks=tuple(Chunk(requests[c.request], c.start, c.num_tokens, _blocks(c.new_blocks)) for c in step.scheduled),
        arrived=tuple(requests[i] for i in step.arrived if requests[i].id not in turned),
        aborted=tuple(finish(entry) for entry in step.aborted),
        admitted=tuple(requests[i] for i in step.admitted),
        exhausted=tuple(
            Exhausted(
                request=requests[e.request],
                blocks_needed=e.blocks_needed,
                blocks_free=e.blocks_free,
                outcome=Outcome(e.outcome),
                victim=requests[e.victim] if e.HasField("victim") else None,
                before_chunk=e.before_scheduled,
            )
            for e in step.exhausted
        ),
        finished=tuple(finish(entry) for entry in step.finished),
        prefix_hits=tuple(
            PrefixHit(
                requests[hit.request],
                hit.num_tokens,
                tuple(from_le32(hit.blocks)),
                hit.copied_from if hit.HasField("copied_from") else None,
            )
            for hit in step.prefix_hits
        ),
        completed=step.completed,
    )
