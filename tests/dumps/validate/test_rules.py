"""One defect at a time: the rule that is broken is named, at the field that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.paths import parse
from dumps.schema import state_pb2 as pb
from dumps.strategies.valid import states
from dumps.tensors import le32
from dumps.validate import MAX_FINDINGS, validate
from tests.small_dump import BLOCK_BYTES, small_state

Spoil = Callable[[pb.RuntimeState], object]


def set_to(path: str, value: object) -> Spoil:
    """Sets the field at ``path``; bytes lists are given as lists of ids."""

    def spoil(state: pb.RuntimeState) -> None:
        *steps, name = parse(path)
        owner: Any = state
        for step in steps:
            owner = getattr(owner, step) if isinstance(step, str) else owner[step]
        setattr(owner, str(name), le32(value) if isinstance(value, list) else value)

    return spoil


def both(*spoils: Spoil) -> Spoil:
    return lambda state: [spoil(state) for spoil in spoils]


MANIFEST = [
    (set_to("manifest.id", "XYZ"), "manifest.id", "manifest.id"),
    (set_to("manifest.reason", "because"), "manifest.reason", "manifest.reason"),
    (set_to("manifest.record_level", "all"), "manifest.level", "manifest.record_level"),
    (set_to("manifest.platform_fingerprint", "ab"), "manifest.platform", "manifest.platform_fingerprint"),
    (set_to("failures[0].kind", "odd"), "failures.kind", "failures[0].kind"),
    (set_to("failures[0].request", 2), "failures.request", "failures[0].request"),
    (set_to("failures[0].step", 4), "failures.step", "failures[0].step"),
    (set_to("failures[0].kv_cache_used_bytes", 10**9), "failures.bytes", "failures[0].kv_cache_used_bytes"),
    (set_to("failures[0].non_finite.where", "disk"), "failures.non-finite", "failures[0].non_finite.where"),
    (
        lambda s: s.failures[0].non_finite.MergeFrom(pb.NonFinite(where="kv-cache", block=3)),
        "failures.non-finite",
        "failures[0].non_finite.block",
    ),
    (set_to("ledger[0].grade", 0), "ledger.grade", "ledger[0].grade"),
]

REQUESTS = [
    (set_to("requests[1].id", ""), "requests.id", "requests[1].id"),
    (set_to("requests[1].id", "req-a"), "requests.id", "requests[1].id"),
    (set_to("requests[0].prompt_token_ids", [1, 2]), "requests.token-count", "requests[0].prompt_token_ids"),
    (set_to("requests[0].prompt_token_ids", b"12345"), "requests.token-count", "requests[0].prompt_token_ids"),
    (set_to("requests[0].prompt_token_ids", [1, 2, 10]), "requests.token-id", "requests[0].prompt_token_ids"),
    (set_to("requests[0].prompt_token_ids", [1, 2, -1]), "requests.token-id", "requests[0].prompt_token_ids"),
    (set_to("requests[0].output_token_ids", [10]), "requests.token-id", "requests[0].output_token_ids"),
    (set_to("requests[0].output_digests", b"1234567"), "requests.digests", "requests[0].output_digests"),
    (set_to("engine.max_model_len", 3), "requests.length", "requests[0]"),
    (set_to("requests[0].sampling.max_tokens", 0), None, ""),
    (
        both(set_to("requests[0].num_output_tokens", 5), set_to("requests[0].output_token_ids", [5] * 5)),
        "requests.length",
        "requests[0].num_output_tokens",
    ),
    (set_to("requests[0].num_prompt_tokens", 0), "requests.length", "requests[0].num_prompt_tokens"),
    (set_to("requests[0].status", "asleep"), "requests.status", "requests[0].status"),
    (set_to("requests[0].finish_reason", "stop"), "requests.finish", "requests[0].status"),
    (set_to("requests[0].finish_step", 1), "requests.finish", "requests[0].status"),
    (set_to("requests[1].finish_reason", ""), "requests.finish", "requests[1].finish_reason"),
    (set_to("requests[1].finish_reason", "stop"), "requests.finish", "requests[1].finish_reason"),
    (set_to("requests[1].finish_reason", "bored"), "requests.finish", "requests[1].finish_reason"),
    (set_to("requests[1].finish_cause", "max-tokens"), "requests.finish", "requests[1].finish_cause"),
    (set_to("manifest.record_level", "shape"), "requests.level", "requests[0].prompt_token_ids"),
    (set_to("requests[0].prompt_text", "hello"), "requests.level", "requests[0].prompt_text"),
    (set_to("requests[0].sampling.temperature", -1.0), "requests.sampling", "requests[0].sampling.temperature"),
    (set_to("requests[0].sampling.temperature", float("nan")), "requests.sampling", "requests[0].sampling.temperature"),
    (set_to("requests[0].sampling.top_p", 0.0), "requests.sampling", "requests[0].sampling.top_p"),
    (set_to("requests[0].sampling.min_p", 1.0), "requests.sampling", "requests[0].sampling.min_p"),
    (
        set_to("requests[0].sampling.presence_penalty", 2.5),
        "requests.sampling",
        "requests[0].sampling.presence_penalty",
    ),
    (
        set_to("requests[0].sampling.frequency_penalty", -3),
        "requests.sampling",
        "requests[0].sampling.frequency_penalty",
    ),
    (
        set_to("requests[0].sampling.repetition_penalty", 0),
        "requests.sampling",
        "requests[0].sampling.repetition_penalty",
    ),
    (
        lambda s: s.requests[0].sampling.logit_bias.add(token_id=10),
        "requests.sampling",
        "requests[0].sampling.logit_bias[0].token_id",
    ),
    (
        both(
            lambda s: s.quirks.add(name="token-ids-unchecked"),
            lambda s: s.requests[0].sampling.logit_bias.add(token_id=10),
        ),
        "requests.unchecked-id",
        "requests[0].sampling.logit_bias[0].token_id",
    ),
    (
        lambda s: s.requests[0].sampling.logit_bias.add(token_id=1, bias=101),
        "requests.sampling",
        "requests[0].sampling.logit_bias[0].bias",
    ),
    (
        lambda s: s.requests[0].sampling.stop_token_ids.append(10),
        "requests.sampling",
        "requests[0].sampling.stop_token_ids",
    ),
]

KV = [
    (set_to("kv.block_size", 4), "kv.sizes", "kv.block_size"),
    (set_to("kv.num_blocks", 4), "kv.sizes", "kv.num_blocks"),
    (set_to("kv.block_size", 0), "kv.sizes", "kv.block_size"),
    (set_to("kv.num_layers", 2), "kv.sizes", "kv.num_layers"),
    (set_to("kv.quant_bits", 8), "kv.sizes", "kv.quant_bits"),
    (both(set_to("kv.quant_bits", 4), set_to("engine.kv_quant_bits", 4)), "kv.sizes", "kv.quant_bits"),
    (
        both(set_to("kv.quant_bits", 8), set_to("engine.kv_quant_bits", 8), set_to("engine.engine", "pplx")),
        "kv.bytes",
        "kv.max_bytes",
    ),
    (set_to("kv.seq_len_exceeded_at", 17), "kv.sizes", "kv.seq_len_exceeded_at"),
    (set_to("kv.ref_counts", [1, 2, 0]), "kv.ref-count", "kv.ref_counts[1]"),
    (set_to("kv.ref_counts", [1, 1, 1]), "kv.ref-count", "kv.ref_counts[2]"),
    (set_to("kv.ref_counts", [1, 1]), "kv.ref-count", "kv.ref_counts"),
    (set_to("kv.free_blocks", [2, 2]), "kv.free-twice", "kv.free_blocks"),
    (set_to("kv.free_blocks", [2, 1]), "kv.free-and-used", "kv.free_blocks"),
    (set_to("kv.free_blocks", [3]), "kv.ids", "kv.free_blocks"),
    (set_to("kv.free_blocks", [-1]), "kv.ids", "kv.free_blocks"),
    (set_to("kv.free_blocks", b"abc"), "kv.ids", "kv.free_blocks"),
    (set_to("kv.free_blocks", []), "kv.pool-sum", "kv.free_blocks"),
    (set_to("kv.tables[0].blocks", [0, 9]), "kv.ids", "kv.tables[0].blocks"),
    (set_to("kv.tables[0].blocks", [0, 0]), "kv.table-repeats", "kv.tables[0].blocks"),
    (set_to("kv.tables[0].num_tokens", 5), "kv.table-overfull", "kv.tables[0].num_tokens"),
    (set_to("kv.tables[0].request", 2), "kv.request-index", "kv.tables[0].request"),
    (lambda s: s.kv.tables.add(request=0), "kv.request-index", "kv.tables[1].request"),
    (
        both(set_to("requests[0].num_prompt_tokens", 2), set_to("requests[0].prompt_token_ids", [1, 2])),
        "kv.table-longer",
        "kv.tables[0].num_tokens",
    ),
    (set_to("kv.tables[0].request", 1), "kv.leak", "kv.tables[0].request"),
    (
        both(
            set_to("kv.tables[0].num_tokens", 3),
            lambda s: s.kv.tables.add(request=1, blocks=le32([1]), num_tokens=2),
            set_to("kv.ref_counts", [1, 2, 0]),
        ),
        "kv.shared-writable",
        "kv.tables[0].blocks",
    ),
    (set_to("kv.used_bytes", BLOCK_BYTES), "kv.bytes", "kv.used_bytes"),
    (set_to("kv.used_bytes", 4 * BLOCK_BYTES), "kv.bytes", "kv.used_bytes"),
    (set_to("kv.max_bytes", 3 * BLOCK_BYTES + 1), "kv.bytes", "kv.max_bytes"),
    (
        both(set_to("kv.max_bytes", 6 * BLOCK_BYTES), set_to("kv.used_bytes", 4 * BLOCK_BYTES)),
        "kv.bytes",
        "kv.max_bytes",
    ),
    (set_to("kv.contents_blocks", [7]), "kv.ids", "kv.contents_blocks"),
    (set_to("kv.contents_blocks", [1, 1]), "kv.contents", "kv.contents_blocks"),
    (set_to("kv.contents_selection", "none"), "kv.contents", "kv.contents_selection"),
    (set_to("kv.contents_selection", "some"), "kv.contents", "kv.contents_selection"),
    (lambda s: s.kv.prefix_hashes.add(block=3), "kv.ids", "kv.prefix_hashes[0].block"),
]

SCHEDULE = [
    (set_to("steps[1].index", 2), "schedule.step-index", "steps[1].index"),
    (set_to("steps[1].start_ns", 1), "schedule.time", "steps[1].start_ns"),
    (set_to("steps[1].completed", False), "schedule.completed", "steps[1].completed"),
    (lambda s: s.steps.pop(0), "schedule.keyframe", "scheduler.start"),
    (set_to("scheduler.start.before_step", 1), "schedule.keyframe", "scheduler.start.before_step"),
    (set_to("scheduler.next_step", 2), "schedule.next-step", "scheduler.next_step"),
    (lambda s: s.ClearField("scheduler"), "schedule.scheduler", "scheduler"),
    (lambda s: s.scheduler.waiting.append(9), "schedule.request-index", "scheduler.waiting"),
    (lambda s: s.scheduler.waiting.append(0), "schedule.queues", "scheduler"),
    (lambda s: s.scheduler.waiting.append(1), "schedule.queues", "scheduler"),
    (set_to("engine.max_num_seqs", 0), None, ""),
    (
        both(set_to("engine.max_num_seqs", 1), lambda s: s.scheduler.running.append(1)),
        "schedule.queues",
        "scheduler.running",
    ),
    (lambda s: s.steps[0].admitted.append(5), "schedule.request-index", "steps[0].admitted"),
    (lambda s: s.steps[0].arrived.append(5), "schedule.request-index", "steps[0].arrived"),
    (lambda s: s.steps[0].aborted.add(request=5), "schedule.request-index", "steps[0].aborted"),
    (lambda s: s.steps[0].finished.add(request=5), "schedule.request-index", "steps[0].finished"),
    (set_to("steps[0].scheduled[0].request", 5), "schedule.request-index", "steps[0].scheduled[0].request"),
    (set_to("steps[2].scheduled[0].num_tokens", 0), "schedule.num-tokens", "steps[2].scheduled[0].num_tokens"),
    (set_to("steps[1].scheduled[0].start", 1), "schedule.contiguous", "steps[1].scheduled[0].start"),
    (set_to("steps[2].scheduled[0].start", 0), "schedule.contiguous", "steps[2].scheduled[0].start"),
    (lambda s: s.steps[0].scheduled.add(request=1, start=2, num_tokens=1), "schedule.twice", "steps[0].scheduled"),
    (set_to("engine.max_num_batched_tokens", 3), "schedule.budget", "steps[0].scheduled"),
    (set_to("steps[2].scheduled[0].num_tokens", 2), "schedule.beyond-end", "steps[2].scheduled[0]"),
    (set_to("steps[0].scheduled[0].sampled", True), "schedule.sampled", "steps[0].scheduled[0].sampled"),
    (set_to("steps[0].scheduled[1].sampled", False), "schedule.sampled", "steps[0].scheduled[1].sampled"),
    (
        both(set_to("steps[2].completed", False), set_to("steps[2].scheduled[0].sampled", True)),
        "schedule.sampled",
        "steps[2].scheduled[0].sampled",
    ),
    (set_to("steps[0].scheduled[1].sampled_token", 10), "schedule.token-id", "steps[0].scheduled[1].sampled_token"),
    (
        set_to("steps[0].scheduled[1].sampled_token", 1),
        "schedule.token-mismatch",
        "steps[0].scheduled[1].sampled_token",
    ),
    (
        both(set_to("requests[1].output_digests", bytes(8)), set_to("steps[0].scheduled[1].logits_digest", 5)),
        "schedule.digest-mismatch",
        "steps[0].scheduled[1].logits_digest",
    ),
    (set_to("steps[2].scheduled[0].sampled", True), "schedule.output-count", "requests[0].num_output_tokens"),
    (set_to("steps[1].scheduled[0].new_blocks", [0]), "schedule.block-held", "steps[1].scheduled[0].new_blocks"),
    (set_to("steps[1].scheduled[0].new_blocks", [2]), "schedule.block-held", "steps[1].scheduled[0].new_blocks"),
    (set_to("steps[1].scheduled[0].new_blocks", [3]), "schedule.blocks", "steps[1].scheduled[0].new_blocks"),
    (set_to("steps[1].scheduled[0].new_blocks", b"xy"), "schedule.blocks", "steps[1].scheduled[0].new_blocks"),
    (set_to("steps[1].scheduled[0].new_blocks", []), "schedule.no-slot", "steps[1].scheduled[0].new_blocks"),
    (set_to("steps[2].exhausted[0].request", 9), "schedule.request-index", "steps[2].exhausted[0].request"),
    (set_to("steps[2].exhausted[0].outcome", "give-up"), "schedule.exhausted", "steps[2].exhausted[0].outcome"),
    (set_to("steps[2].exhausted[0].blocks_free", 1), "schedule.exhausted", "steps[2].exhausted[0].blocks_free"),
    (
        set_to("steps[2].exhausted[0].before_scheduled", 2),
        "schedule.exhausted",
        "steps[2].exhausted[0].before_scheduled",
    ),
    (set_to("steps[2].exhausted[0].victim", 0), "schedule.exhausted", "steps[2].exhausted[0].victim"),
    (set_to("steps[2].exhausted[0].outcome", "preempt-other"), "schedule.exhausted", "steps[2].exhausted[0].victim"),
    (set_to("kv.tables[0].blocks", [1, 0]), "schedule.tables", "kv.tables[0].blocks"),
]


def test_the_small_state_is_valid():
    assert validate(small_state()) == []


@pytest.mark.parametrize(("spoil", "rule", "path"), MANIFEST + REQUESTS + KV + SCHEDULE)
def test_one_defect(spoil, rule, path):
    """A row without a rule is a change that breaks none."""
    state = small_state()
    spoil(state)
    findings = validate(state)
    if rule is None:
        assert findings == []
        return
    assert (rule, path) in {(finding.rule, finding.path) for finding in findings}
    assert all(finding.message for finding in findings)


def keyframed() -> pb.RuntimeState:
    """The small state as a ring that wrapped after step 0 left it."""
    state = small_state()
    del state.steps[0]
    start = state.scheduler.start
    start.before_step, start.free_blocks = 1, le32([1])
    start.running.add(request=0, num_computed_tokens=2, num_output_tokens=0, block_table=le32([0]))
    start.running.add(request=1, num_computed_tokens=2, num_output_tokens=1, block_table=le32([2]))
    return state


def test_a_wrapped_ring_is_valid():
    assert validate(keyframed()) == []


@pytest.mark.parametrize(
    ("spoil", "rule", "path"),
    [
        (set_to("scheduler.start.free_blocks", [0]), "schedule.blocks", "scheduler.start.free_blocks"),
        (set_to("scheduler.start.free_blocks", []), "schedule.blocks", "scheduler.start.free_blocks"),
        (set_to("scheduler.start.free_blocks", [5]), "schedule.blocks", "scheduler.start.free_blocks"),
        (set_to("scheduler.start.running[0].request", 7), "schedule.request-index", "scheduler.start.running"),
        (lambda s: s.scheduler.start.waiting.append(7), "schedule.request-index", "scheduler.start.waiting"),
        (
            set_to("scheduler.start.running[0].block_table", [9]),
            "schedule.blocks",
            "scheduler.start.running[0].block_table",
        ),
        (
            set_to("scheduler.start.running[0].num_computed_tokens", 3),
            "schedule.no-slot",
            "scheduler.start.running[0].num_computed_tokens",
        ),
        (
            set_to("scheduler.start.running[0].num_computed_tokens", 1),
            "schedule.contiguous",
            "steps[0].scheduled[0].start",
        ),
        (
            set_to("scheduler.start.running[0].num_output_tokens", 1),
            "schedule.output-count",
            "scheduler.start.running[0].num_output_tokens",
        ),
    ],
)
def test_one_defect_in_a_keyframe(spoil, rule, path):
    state = keyframed()
    spoil(state)
    assert (rule, path) in {(finding.rule, finding.path) for finding in validate(state)}


def aborted() -> pb.RuntimeState:
    """The small state, with request 1 gone before step 1, where request 0 is given its block."""
    state = small_state()
    state.steps[1].aborted.add(request=1, reason="abort", cause="client-gone")
    state.steps[1].scheduled[0].new_blocks = le32([2])
    del state.steps[2].exhausted[:], state.steps[2].finished[:]
    request = state.requests[1]
    request.finish_reason, request.finish_cause, request.finish_step = "abort", "client-gone", 1
    state.kv.tables[0].blocks = le32([0, 2])
    state.kv.free_blocks, state.kv.ref_counts = le32([1]), le32([1, 0, 1])
    return state


def test_an_abort_frees_blocks():
    assert validate(aborted()) == []
    state = aborted()
    del state.steps[1].aborted[:]
    assert "schedule.block-held" in {finding.rule for finding in validate(state)}


def test_leaks_and_clocks_are_warnings():
    state = small_state()
    state.steps[1].start_ns = 1
    assert [finding.severity for finding in validate(state)] == ["warning"]


def test_findings_are_bounded():
    state = small_state()
    for _ in range(MAX_FINDINGS + 10):
        state.failures.add(kind="odd")
    assert len(validate(state)) == MAX_FINDINGS


def test_a_state_of_which_little_is_known_is_not_blamed():
    """What an importer may bring: no pool, no schedule."""
    state = pb.RuntimeState()
    state.manifest.CopyFrom(small_state().manifest)
    state.requests.add(id="a", status="running", num_prompt_tokens=5)
    assert validate(state) == []


@given(st.data())
def test_no_state_makes_it_raise(data):
    """Any scalar in a valid state replaced by any other value."""
    state = data.draw(states())
    for _ in range(data.draw(st.integers(1, 4))):
        scramble(data, state)
    for finding in validate(state):
        assert finding.rule
        assert finding.severity in ("error", "warning")


def scramble(data: st.DataObject, message) -> None:
    fields = [field for field, _ in message.ListFields() if field.type != field.TYPE_STRING]
    if not fields:
        return
    field = data.draw(st.sampled_from(fields))
    value = getattr(message, field.name)
    if field.type == field.TYPE_MESSAGE:
        scramble(data, data.draw(st.sampled_from(list(value))) if field.is_repeated else value)
    elif field.is_repeated:
        value.append(data.draw(st.integers(0, 2**32 - 1)))
    elif field.type == field.TYPE_BYTES:
        setattr(message, field.name, data.draw(st.binary(max_size=13)))
    elif field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        setattr(message, field.name, data.draw(st.floats(width=32)))
    elif field.type == field.TYPE_BOOL:
        setattr(message, field.name, not value)
    elif field.type != field.TYPE_ENUM:
        setattr(message, field.name, data.draw(st.sampled_from([0, 1, 7, 2**31, 2**32 - 1])))
