"""Each rule of the prefix cache, by a dump of a small run with one thing changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dumps.prefix_hash import chain_of
from dumps.schema import state_pb2 as pb
from dumps.tensors import from_le32, le32
from dumps.validate import validate
from replay.engine.defects import Defects
from replay.engine.engine import Engine
from replay.engine.live import LiveScheduler
from replay.engine.request import FinishCause, Request, SamplingParams
from replay.engine.schedule import EngineConfig, Sample, StepPlan

CONFIG = EngineConfig(
    num_blocks=12, block_size=4, max_model_len=40, max_num_seqs=4, max_num_batched_tokens=16, prefix_cache=True
)
FIRST, OTHER = list(range(1, 9)), [1, 2, 3, 4, 9, 9]


class Draw:
    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        return {c.request.id: Sample(c.request.num_tokens) for c in plan.chunks if c.samples}


class Keeping:
    """An engine hook that writes a state as a recorder does, for requests by their number."""

    def __init__(self, requests: list[Request]) -> None:
        self.steps: list[pb.Step] = []
        self.index = {request: number for number, request in enumerate(requests)}

    def planned(self, plan: StepPlan) -> None:
        step = pb.Step(index=plan.index, start_ns=plan.index + 1, completed=True)
        index = self.index
        step.arrived.extend(index[r] for r in plan.arrived)
        step.admitted.extend(index[r] for r in plan.admitted)
        for end in plan.aborted:
            step.aborted.add(request=index[end.request], reason="abort", cause="client-gone")
        for c in plan.chunks:
            step.scheduled.add(
                request=index[c.request],
                start=c.start,
                num_tokens=c.num_tokens,
                new_blocks=le32(c.new_blocks),
                sampled=c.samples,
            )
        for hit in plan.prefix_hits:
            entry = step.prefix_hits.add(request=index[hit.request], num_tokens=hit.num_tokens, blocks=le32(hit.blocks))
            if hit.copied_from is not None:
                entry.copied_from = hit.copied_from
        self.steps.append(step)

    def stepped(self, outcome: object) -> None:
        for end in outcome.finished:  # type: ignore[attr-defined]
            self.steps[-1].finished.add(request=self.index[end.request], reason="length", cause="max-tokens")


def run(defects: Defects = Defects(), *, config: EngineConfig = CONFIG, abort: bool = False) -> pb.RuntimeState:  # noqa: B008
    """r0 computes two blocks and goes on, r1 shares the first, r2 shares one and copies the other; r3 comes last."""
    sampling = SamplingParams(max_tokens=12)
    prompts = [FIRST, OTHER, FIRST, [7] * 5]
    requests = [
        Request(id=f"r{n}", tokens=list(prompt), num_prompt=len(prompt), sampling=sampling)
        for n, prompt in enumerate(prompts)
    ]
    keeping = Keeping(requests)
    scheduler = LiveScheduler(config, defects=defects)
    engine = Engine(scheduler=scheduler, executor=Draw(), hooks=[keeping])
    for request in requests:
        engine.add(request)
        engine.step()
        if abort and request is requests[0]:
            engine.abort(request, FinishCause.CLIENT_GONE)
    state = pb.RuntimeState()
    state.manifest.id, state.manifest.reason, state.manifest.record_level = "0" * 16, "demand", "tokens"
    state.engine.block_size, state.engine.num_blocks, state.engine.prefix_cache = 4, config.num_blocks, True
    state.engine.max_model_len = 40
    for request in requests:
        message = state.requests.add(id=request.id, num_prompt_tokens=request.num_prompt)
        message.status = request.status.value
        if request.finished:
            message.finish_reason, message.finish_cause = "abort", "client-gone"
        message.num_output_tokens = request.num_output
        message.prompt_token_ids = le32(request.tokens[: request.num_prompt])
        message.output_token_ids = le32(request.output)
        message.sampling.max_tokens, message.sampling.top_p, message.sampling.repetition_penalty = 12, 1.0, 1.0
    state.steps.extend(keeping.steps)
    state.scheduler.next_step = scheduler.next_step
    state.scheduler.running.extend(keeping.index[r] for r in scheduler.running)
    kv = state.kv
    kv.block_size, kv.num_blocks, kv.free_blocks = 4, config.num_blocks, le32(scheduler.pool.free)
    kv.ref_counts = le32(scheduler.pool.ref_counts)
    for request in scheduler.running:
        kv.tables.add(request=keeping.index[request], blocks=le32(request.blocks), num_tokens=request.num_computed)
    assert scheduler.cache is not None
    for entry in scheduler.cache.entries:
        kv.prefix_hashes.add(block=entry.block, hash=entry.hash, parent=entry.parent)
    return state


def found(state: pb.RuntimeState) -> set[tuple[str, str]]:
    return {(finding.rule, finding.path) for finding in validate(state)}


def test_the_run_has_a_hit_and_a_copy_and_breaks_no_rule():
    state = run()
    assert found(state) == set()
    assert [[(h.request, h.num_tokens) for h in s.prefix_hits] for s in state.steps] == [[], [(1, 4)], [(2, 7)], []]
    assert state.steps[2].prefix_hits[0].HasField("copied_from")
    assert max(from_le32(state.kv.ref_counts)) == 3


def hit(state: pb.RuntimeState, step: int = 1) -> pb.PrefixHit:
    return state.steps[step].prefix_hits[0]


def set_hit(step: int = 1, **values: object) -> Callable[[pb.RuntimeState], None]:
    def change(state: pb.RuntimeState) -> None:
        for name, value in values.items():
            setattr(hit(state, step), name, le32(value) if isinstance(value, list) else value)

    return change


def last(state: pb.RuntimeState) -> int:
    """A block that is not full."""
    return from_le32(state.kv.tables[-1].blocks)[-1]


def circle(state: pb.RuntimeState) -> None:
    """Of hashes that no tokens in the record explain."""
    for block, own, parent in ((10, b"a", b"b"), (11, b"b", b"a")):
        state.kv.prefix_hashes.add(block=block, hash=own * 16, parent=parent * 16)


HIT, END = "steps[1].prefix_hits[0]", "kv.prefix_hashes[0]"
CASES: list[tuple[Callable[[pb.RuntimeState], object], str, str]] = [
    (set_hit(num_tokens=5), "prefix.hit", f"{HIT}.num_tokens"),
    (set_hit(num_tokens=0), "prefix.hit", f"{HIT}.num_tokens"),
    (set_hit(copied_from=0), "prefix.hit", f"{HIT}.copied_from"),
    (lambda s: hit(s, 2).ClearField("copied_from"), "prefix.hit", "steps[2].prefix_hits[0].copied_from"),
    (set_hit(blocks=[12]), "kv.ids", f"{HIT}.blocks"),
    (set_hit(2, copied_from=12), "kv.ids", "steps[2].prefix_hits[0].copied_from"),
    (set_hit(blocks=[2]), "prefix.unwritten", f"{HIT}.blocks"),
    (set_hit(blocks=[1]), "prefix.foreign", f"{HIT}.blocks"),
    (set_hit(2, copied_from=0), "prefix.foreign", "steps[2].prefix_hits[0].blocks"),
    (set_hit(request=3), "prefix.hit", f"{HIT}.request"),
    (set_hit(request=99), "prefix.hit", f"{HIT}.request"),
    (lambda s: s.steps[1].ClearField("admitted"), "prefix.hit", f"{HIT}.request"),
    (lambda s: setattr(s.engine, "prefix_cache", False), "prefix.off", HIT),
    (lambda s: setattr(s.kv.prefix_hashes[0], "hash", b"x" * 16), "prefix.hash", f"{END}.hash"),
    (lambda s: setattr(s.kv.prefix_hashes[1], "parent", b""), "prefix.hash", "kv.prefix_hashes[1].parent"),
    (lambda s: setattr(s.kv.prefix_hashes[0], "hash", b"short"), "prefix.hash", END),
    (lambda s: setattr(s.kv.prefix_hashes[0], "parent", s.kv.prefix_hashes[0].hash), "prefix.hash", END),
    (lambda s: s.kv.prefix_hashes.add().CopyFrom(s.kv.prefix_hashes[0]), "prefix.twice", "kv.prefix_hashes[4]"),
    (lambda s: s.kv.prefix_hashes.add(block=last(s), hash=b"z" * 16), "prefix.unwritten", "kv.prefix_hashes[4]"),
    (lambda s: s.kv.prefix_hashes.add(block=11, hash=b"z" * 16), "prefix.unexplained", "kv.prefix_hashes[4]"),
    (circle, "prefix.hash", "kv.prefix_hashes[4].parent"),
    (lambda s: s.steps[1].prefix_hits.add().CopyFrom(hit(s)), "prefix.hit", "steps[1].prefix_hits"),
    (
        lambda s: s.steps[1].scheduled[1].__setattr__("new_blocks", le32([0])),
        "schedule.block-held",
        "steps[1].scheduled[1].new_blocks",
    ),
]


@pytest.mark.parametrize(("change", "rule", "path"), CASES)
def test_a_contradiction_is_named(change, rule, path):
    state = run()
    change(state)
    assert (rule, path) in found(state)


def test_blocks_known_before_they_were_written_are_named_with_nothing_run():
    """The defect prefix-leak in a dump: a cancelled prefill, and a request that was given what it never wrote."""
    long = EngineConfig(**{**{n: getattr(CONFIG, n) for n in CONFIG.__dataclass_fields__}, "max_num_batched_tokens": 4})
    state = run(Defects(register_early=True), config=long, abort=True)
    rules = {rule for rule, _ in found(state)}
    assert "prefix.unwritten" in rules
    assert found(run(config=long, abort=True)) == set()


def wrapped() -> pb.RuntimeState:
    """The same run as a ring has it that lost its first step."""
    state = run()
    start = state.scheduler.start
    start.before_step, start.free_blocks = 1, le32(range(2, 12))
    start.running.add(request=0, num_computed_tokens=8, num_output_tokens=1, block_table=le32([0, 1]))
    for block, value in enumerate(chain_of(FIRST, 4)):
        start.prefix_hashes.add(block=block, hash=value, parent=chain_of(FIRST, 4)[0] if block else b"")
    del state.steps[0]
    return state


def test_a_record_that_begins_later_breaks_no_rule_either():
    assert found(wrapped()) == set()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda s: setattr(s.scheduler.start.prefix_hashes[0], "hash", b"x" * 16), "prefix.hash"),
        (lambda s: setattr(s.scheduler.start.running[0], "num_computed_tokens", 7), "prefix.unwritten"),
        (lambda s: s.scheduler.start.prefix_hashes.add(block=11, hash=b"x" * 16), "prefix.lost"),
        (lambda s: s.scheduler.start.prefix_hashes.add(block=12, hash=b"x" * 16), "kv.ids"),
    ],
)
def test_what_the_cache_knew_when_the_record_begins_is_checked(change, rule):
    state = wrapped()
    change(state)
    assert rule in {name for name, _ in found(state)}
