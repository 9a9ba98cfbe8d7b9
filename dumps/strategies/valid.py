"""Hypothesis strategies for dumps in which nothing contradicts anything: `validate` finds nothing in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from dumps.kv_contents import CONTENTS, SCALES
from dumps.schema import state_pb2 as pb
from dumps.schema.writer import SectionData
from dumps.strategies.simulate import STEP_NS, SimRequest, Simulation
from dumps.strategies.traces import add_traces
from dumps.strategies.world import add_context_stack, add_exchanges, add_stacks, add_tool_calls
from dumps.tensors import le32, tensor_bytes

DrawFn = Callable[[st.SearchStrategy[Any]], Any]

_BYTES_PER_NUMBER = 4  # kv.dtype is float32
_WORDS = st.text(max_size=8)


@st.composite
def states(draw: DrawFn, *, prefix_cache: bool | None = None) -> pb.RuntimeState:
    """A small state: a few requests, up to eight steps of them, the pool they lead to, sometimes a failure, and
    sometimes stacks, tool calls, exchanges and a context stack.

    ``prefix_cache`` None: with or without one. Without failures, shrinks to one request and no steps.
    """
    simulation = _simulation(draw, draw(st.booleans()) if prefix_cache is None else prefix_cache)
    requests = list(simulation.coming)
    num_steps = draw(st.integers(4, 8) if draw(st.booleans()) else st.integers(0, 8))
    dies = draw(st.booleans())
    for number in range(num_steps):
        simulation.step(
            lambda low, high: draw(st.integers(low, high)), completed=not (dies and number == num_steps - 1)
        )
    level = draw(st.sampled_from(["tokens", "shape", "full"]))
    state = pb.RuntimeState()
    _head(draw, state, simulation, level)
    first = draw(st.integers(0, num_steps - 1)) if num_steps else 0
    # What has not arrived is not in a dump. The simulation takes requests in order, so indices stay as they are.
    for request in requests:
        if request.status:
            _request(draw, state, request, level)
    _schedule(state, simulation, first, level)
    add_traces(draw, state)
    _kv(draw, state, simulation)
    if draw(st.integers(0, 3)) == 3:
        _surroundings(draw, state, level)
    if state.requests and draw(st.booleans()):
        _failure(draw, state)
    return state


@st.composite
def sections(draw: DrawFn, state: pb.RuntimeState) -> list[SectionData]:
    """Sections that go with ``state``: its KV contents when it lists any, and some of other kinds."""
    found = []
    kv = state.kv
    if kv.contents_blocks:
        shape = (len(kv.contents_blocks) // 4, kv.num_layers, 2, kv.block_size, kv.num_kv_heads, kv.head_dim)
        tensors: list[tuple[str, str, tuple[int, ...]]] = [(CONTENTS, "int8" if kv.quant_bits else "float32", shape)]
        if kv.quant_bits:
            tensors.append((SCALES, "float32", shape[:-1]))
        for kind, dtype, dimensions in tensors:
            size = tensor_bytes(dtype, dimensions)
            data = draw(st.binary(min_size=size, max_size=size))
            found.append(SectionData(kind=kind, data=data, dtype=dtype, shape=dimensions))
    for kind in draw(st.lists(st.sampled_from(["log", "trace", "x"]), max_size=2, unique=True)):
        data = draw(st.binary(max_size=80)) * draw(st.integers(1, 4))
        found.append(SectionData(kind=kind, data=data, compress=draw(st.booleans())))
    return found


@st.composite
def dumps(draw: DrawFn) -> tuple[pb.RuntimeState, list[SectionData]]:
    """A state and sections that go with it, for `write_dump`."""
    state = draw(states())
    return state, draw(sections(state))


def _simulation(draw: DrawFn, prefix_cache: bool) -> Simulation:
    vocab, max_model_len = 8, 16
    coming = []
    for index in range(draw(st.integers(2 if prefix_cache else 1, 3))):
        lengths = (2, 6) if prefix_cache else (1, 4)
        tokens = draw(st.lists(st.integers(0, vocab - 1), min_size=lengths[0], max_size=lengths[1]))
        max_tokens = draw(st.sampled_from([1, 8, 2, 6]))
        coming.append(SimRequest(index=index, num_prompt=len(tokens), max_tokens=max_tokens, tokens=tokens))
    if prefix_cache:  # prompts that begin alike, and such that are the beginning of another
        for later in coming[1:]:
            same = later.num_prompt if draw(st.booleans()) else draw(st.integers(0, later.num_prompt))
            later.tokens[:same] = coming[0].tokens[:same]
            later.num_prompt = len(later.tokens)
    return Simulation(
        num_blocks=draw(st.integers(3, 9) if prefix_cache else st.sampled_from([1, 5, 2, 3, 4, 8])),
        block_size=draw(st.sampled_from([2, 1, 2, 3, 4])),
        max_model_len=max_model_len,
        vocab_size=vocab,
        policy=draw(st.sampled_from(["truncate", "preempt"])),
        coming=coming,
        prefix_cache=prefix_cache,
    )


def _head(draw: DrawFn, state: pb.RuntimeState, simulation: Simulation, level: str) -> None:
    manifest = state.manifest
    manifest.id = f"{draw(st.integers(0, 2**64 - 1)):016x}"
    manifest.reason = draw(st.sampled_from(["demand", "silent-truncation", "process-death"]))
    manifest.created_ns = draw(st.integers(0, 2**63))
    manifest.wall_minus_monotonic_ns = draw(st.integers(-(2**40), 2**40))
    manifest.record_level = level
    manifest.tenant = draw(_WORDS)
    if draw(st.booleans()):
        state.active_model = draw(_WORDS)
    model, engine = state.model, state.engine
    model.name, model.dtype = draw(_WORDS), "float32"
    model.vocab_size, model.num_layers, model.num_kv_heads, model.head_dim = simulation.vocab_size, 1, 1, 2
    model.eos_token_ids.append(simulation.vocab_size - 1)
    engine.engine, engine.on_kv_exhausted, engine.kernels = "pplx", simulation.policy, "exact"
    engine.block_size, engine.num_blocks = simulation.block_size, simulation.num_blocks
    engine.max_model_len = simulation.max_model_len
    engine.prefix_cache = simulation.prefix_cache
    tokens = (sum(chunk.num_tokens for chunk in step.scheduled) for step in simulation.steps)
    engine.max_num_batched_tokens = max(tokens, default=1) + draw(st.integers(1, 8))
    engine.max_num_seqs = draw(st.integers(3, 8))  # there are at most three requests


def _surroundings(draw: DrawFn, state: pb.RuntimeState, level: str) -> None:
    add_exchanges(draw, state, level, inbound=False)
    add_tool_calls(draw, state, level)
    add_context_stack(draw, state)
    add_stacks(draw, state)


def _request(draw: DrawFn, state: pb.RuntimeState, request: SimRequest, level: str) -> None:
    entry = state.requests.add(
        id=f"r{request.index}",
        status=request.status,
        finish_reason=request.reason,
        finish_cause=request.cause,
        arrival_step=request.arrival_step,
        finish_step=request.finish_step,
        num_prompt_tokens=request.num_prompt,
        num_output_tokens=request.num_output,
    )
    sampling = entry.sampling
    sampling.max_tokens, sampling.seed = request.max_tokens, draw(st.integers(0, 2**64 - 1))
    sampling.temperature = draw(st.floats(0.0, 2.0))
    sampling.top_p, sampling.repetition_penalty = draw(st.floats(0.125, 1.0)), 1.0
    if level == "shape":
        return
    entry.prompt_token_ids = le32(request.tokens[: request.num_prompt])
    entry.output_token_ids = le32(request.tokens[request.num_prompt :])
    if draw(st.booleans()):
        entry.output_digests = bytes(8 * request.num_output)
    if level == "full":
        entry.prompt_text = draw(_WORDS)


def _schedule(state: pb.RuntimeState, simulation: Simulation, first: int, level: str) -> None:
    scheduler = state.scheduler
    scheduler.waiting.extend(request.index for request in simulation.waiting)
    scheduler.running.extend(request.index for request in simulation.running)
    steps = simulation.steps
    scheduler.next_step = len(steps) - (1 if steps and not steps[-1].completed else 0)
    if first:
        scheduler.start.CopyFrom(simulation.keyframes[first])
    state.steps.extend(steps[first:])
    if level == "shape":
        for step in state.steps:
            for chunk in step.scheduled:
                chunk.ClearField("sampled_token")


def _kv(draw: DrawFn, state: pb.RuntimeState, simulation: Simulation) -> None:
    kv, model = state.kv, state.model
    kv.block_size, kv.num_blocks = simulation.block_size, simulation.num_blocks
    kv.num_layers, kv.num_kv_heads, kv.head_dim, kv.dtype = model.num_layers, 1, model.head_dim, "float32"
    kv.quant_bits = state.engine.kv_quant_bits = draw(st.sampled_from([0, 8]))
    vector = kv.head_dim + _BYTES_PER_NUMBER if kv.quant_bits else kv.head_dim * _BYTES_PER_NUMBER
    block_bytes = 2 * kv.num_layers * kv.block_size * kv.num_kv_heads * vector
    counts = [0] * kv.num_blocks
    for request in simulation.running:
        kv.tables.add(request=request.index, blocks=le32(request.blocks), num_tokens=request.computed)
        for block in request.blocks:
            counts[block] += 1
    kv.prefix_hashes.extend(simulation.prefix_hashes())
    kv.free_blocks, kv.ref_counts = le32(simulation.free), le32(counts)
    kv.used_bytes, kv.max_bytes = block_bytes * sum(count > 0 for count in counts), block_bytes * kv.num_blocks
    kept = [block for block, count in enumerate(counts) if count and draw(st.booleans())]
    kv.contents_blocks, kv.contents_selection = le32(kept), "live" if kept else "none"


def _failure(draw: DrawFn, state: pb.RuntimeState) -> None:
    failure = state.failures.add(kind="silent-truncation", invariant="kv-pool-exhausted", message=draw(_WORDS))
    failure.request = draw(st.integers(0, len(state.requests) - 1))
    failure.step = state.scheduler.next_step
    failure.time_ns = STEP_NS * (state.scheduler.next_step + 1)
    failure.kv_cache_used_bytes, failure.max_kv_cache_bytes = state.kv.used_bytes, state.kv.max_bytes
