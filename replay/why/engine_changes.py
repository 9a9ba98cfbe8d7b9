"""The changes that apply to the dump of an engine: only what its run had can be taken from it."""

from __future__ import annotations

from collections.abc import Iterator

from dumps.kv_contents import has_contents
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump
from replay.engine.schedule import OnExhausted
from replay.signature import Signature
from replay.targets.expected import own_signature
from replay.targets.quirks import quirks_in_force
from replay.targets.settings import NEEDS_MODEL
from replay.why.change import INCLUDED, KV, SCHEDULE, Change, Left

_MODEL_OPTIONS = frozenset({"kernels", "kv"})

_SAMPLING = (
    ("top_k", "0", 0),
    ("top_p", "1", 1.0),
    ("min_p", "0", 0.0),
    ("repetition_penalty", "1", 1.0),
    ("presence_penalty", "0", 0.0),
    ("frequency_penalty", "0", 0.0),
)
"""A parameter, how it is turned off, and the value that has it off."""


def changes_of(dump: Dump) -> tuple[list[Change], list[Left]]:
    """What can be changed of the recorded run, cheapest to explain first, and what it did not have."""
    both = list(_changes(dump))
    return [one for one in both if isinstance(one, Change)], [one for one in both if isinstance(one, Left)]


def needs_model(change: Change) -> bool:
    """Whether nothing of it shows in scheduler and block pool."""
    return not (NEEDS_MODEL.isdisjoint(change.settings) and _MODEL_OPTIONS.isdisjoint(change.options))


def _changes(dump: Dump) -> Iterator[Change | Left]:
    state, signature = dump.state, own_signature(dump.state)
    contents = has_contents(dump)
    yield from _contents(state, contents)
    yield from _quirks(state)
    yield from _cache(state, contents)
    yield from _pool(state, signature)
    yield from _scheduling(state, signature)
    yield from _sampling(state)
    yield from _computing(state, contents)


def _contents(state: pb.RuntimeState, contents: bool) -> Iterator[Change | Left]:
    if not contents:
        yield Left("kv=recompute", "the dump holds no KV contents")
        return
    yield Change(
        options=INCLUDED[KV],
        subject=KV,
        needs="the recorded contents of the KV cache",
        points_to="Computed from the same tokens the cache is sound, so what lay in it was damaged after it was "
        "written, or written wrong: the finding kv-differs of pplx-replay run names the first value.",
    )


def _quirks(state: pb.RuntimeState) -> Iterator[Change | Left]:
    in_force = {quirk.name for quirk in quirks_in_force(state, ())}
    if not state.quirks:
        yield Left("quirk.NAME=off", "it was recorded without any")
    for quirk in state.quirks:
        if quirk.name not in in_force:
            yield Left(f"quirk.{quirk.name}=off", "no replay has it: its damage is in recorded KV contents only")
            continue
        yield Change(
            settings={f"quirk.{quirk.name}": "off"},
            subject=f"quirk.{quirk.name}",
            needs=f"the defect {quirk.name}",
            points_to=f"The defect {quirk.name} is where to mend: pplx-server --help says what it does.",
        )


def _cache(state: pb.RuntimeState, contents: bool) -> Iterator[Change | Left]:
    engine = state.engine
    if engine.prefix_cache:
        yield Change(
            settings={"scheduler.prefix_cache": "false"},
            subject="scheduler.prefix_cache",
            needs="the prefix cache",
            points_to="A request reads blocks that another one wrote, or should have: look at when they are registered "
            "and given away.",
        )
    else:
        yield Left("scheduler.prefix_cache=false", "it ran without a prefix cache")
    if engine.kv_quant_bits:
        yield Change(
            settings={"kv.quant_bits": "0"},
            subject="kv.quant_bits",
            needs=f"the int{engine.kv_quant_bits} KV cache",
            points_to="The quantised cache is off further than the run bears: look at its scales.",
            includes=frozenset({KV} if contents else ()),
        )
    else:
        yield Left("kv.quant_bits=0", "its KV cache was not quantised")


def _pool(state: pb.RuntimeState, signature: Signature | None) -> Iterator[Change | Left]:
    engine = state.engine
    doubled, enough = 2 * engine.num_blocks, blocks_for_all(state)
    for number in (doubled, enough) if enough > doubled else (doubled,):
        yield Change(
            settings={"kv.num_blocks": str(number)},
            subject="kv.num_blocks",
            needs=f"a KV pool of fewer than {number} blocks",
            points_to=f"This load can take {enough} blocks at once: give the pool more, or admit fewer. Sizes between "
            f"{engine.num_blocks} and {number} were not tried.",
            alone_only=number < enough,
        )
    asked = any(step.exhausted for step in state.steps)
    if not asked and (signature is None or signature.identity.invariant != "kv-pool-exhausted"):
        yield Left("scheduler.on_kv_exhausted=...", "no request found the pool empty")
        return
    for policy in OnExhausted:
        if policy.value != engine.on_kv_exhausted:
            yield Change(
                settings={"scheduler.on_kv_exhausted": policy.value},
                subject="scheduler.on_kv_exhausted",
                needs=f"the policy {engine.on_kv_exhausted}",
                points_to=f"What is done when the pool is empty makes the failure: {engine.on_kv_exhausted}.",
            )


def blocks_for_all(state: pb.RuntimeState) -> int:
    """The most blocks that the dump's requests can hold at once, each at the greatest length it is allowed."""
    engine = state.engine
    longest = []
    for request in state.requests:
        limit = request.sampling.max_tokens
        tokens = request.num_prompt_tokens + limit if limit else engine.max_model_len
        tokens = max(min(tokens, engine.max_model_len), request.num_prompt_tokens + request.num_output_tokens)
        longest.append(-(-tokens // max(engine.block_size, 1)))
    return sum(sorted(longest, reverse=True)[: engine.max_num_seqs or None])


def _scheduling(state: pb.RuntimeState, signature: Signature | None) -> Iterator[Change | Left]:
    engine, several = state.engine, len(state.requests) > 1
    name = signature.location.request_id if signature is not None else None
    aborted = {state.requests[end.request].id for step in state.steps for end in step.aborted}
    if several and name in aborted:
        why = "its client left, and of a request that is replayed alone only the arrival is taken from the record"
        yield Left("scope=request", why, applies=True)
    elif several and name is not None:
        yield Change(
            options={"scope": "request"},
            subject="scope",
            needs="other requests in the engine",
            points_to="Alone the request does not fail: look at what requests share, which is the pool, the prefix "
            "cache and the batch.",
        )
    else:
        yield Left("scope=request", "the failure names no single request" if several else "there is one request only")
    yield Change(
        options=INCLUDED[SCHEDULE],
        subject=SCHEDULE,
        needs="the recorded schedule",
        points_to="With the same arrivals this scheduler chooses otherwise, and does well: look at the first step that "
        "differs, which pplx-replay run --schedule live names.",
    )
    if several and engine.max_num_seqs != 1:
        yield Change(
            includes=frozenset({SCHEDULE}),
            settings={"scheduler.max_num_seqs": "1"},
            subject="scheduler.max_num_seqs",
            needs="several requests running at once",
            points_to="One after the other they do well: look at what running requests share, and at "
            "what meets in one step.",
        )
    else:
        yield Left("scheduler.max_num_seqs=1", "no two requests ran at once")
    if signature is not None and signature.identity.invariant == "max-model-len":
        yield Change(
            settings={"model.max_model_len": str(2 * engine.max_model_len)},
            subject="model.max_model_len",
            needs=f"a limit of {engine.max_model_len} tokens",
            points_to="The server's limit of length cut an answer before its own limit, if it had one.",
        )
    else:
        yield Left("model.max_model_len=...", "no request met the limit of length when it failed")
    if engine.checks:
        yield Change(
            options={"checks": "off"},
            subject="checks",
            needs="the checks of what a step reads",
            points_to="The NaN that the checks put into freed blocks was read: without them nobody would have noticed.",
        )
    else:
        yield Left("checks=off", "it was recorded without checks")


def _sampling(state: pb.RuntimeState) -> Iterator[Change | Left]:
    sampling = [request.sampling for request in state.requests]
    if any(one.temperature > 0 for one in sampling):
        yield Change(
            settings={"sampling.temperature": "0"},
            subject="sampling.temperature",
            needs="sampling with a temperature",
            points_to="Greedy answers do not lead there: the failure is in the sampler, or in the tokens that it drew.",
        )
    else:
        yield Left("sampling.temperature=0", "all its requests were greedy")
    unused = []
    for name, off, neutral in _SAMPLING:
        # A dump of another writer may leave out what it did not set.
        values = {getattr(one, name) for one in sampling} - {neutral, 0}
        if not values:
            unused.append(name)
            continue
        yield Change(
            settings={f"sampling.{name}": off},
            subject=f"sampling.{name}",
            needs=f"the sampling parameter {name}",
            points_to=f"The failure is in how {name} is applied, or in the tokens that it led to.",
        )
    if unused:
        yield Left(f"sampling.{', '.join(unused)}", "no request asked for it")
    if any(request.flags.HasField("early_exit") for request in state.requests):
        yield Change(
            settings={"sampling.early_exit": "0"},
            subject="sampling.early_exit",
            needs="early exit",
            points_to="Answers that end early make the failure: look at their threshold.",
        )
    else:
        yield Left("sampling.early_exit=0", "no request asked for it")


def _computing(state: pb.RuntimeState, contents: bool) -> Iterator[Change | Left]:
    dtype = state.model.dtype
    if dtype == "float32":
        yield Left("model.dtype=float32", "it ran in float32")
    else:
        yield Change(
            settings={"model.dtype": "float32"},
            subject="model.dtype",
            needs=dtype or "the recorded dtype",
            points_to=f"In float32 it does not happen: the range or the precision of {dtype} is not enough.",
            includes=frozenset({KV} if contents else ()),
        )
    yield Change(
        options={"kernels": "stock"},
        subject="kernels",
        needs="the exact kernels",
        points_to="Other kernels do not show it: it hangs on rounding, or on a kernel.",
    )
