from __future__ import annotations

import tempfile
from itertools import combinations
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dumps.ledger import weakest
from dumps.prefix_hash import chain_of
from dumps.redact import redact, redact_dump, write_redacted
from dumps.redact.words import in_our_words
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.strategies.programs import programs
from dumps.strategies.valid import dumps, states
from dumps.tensors import from_le32, le32
from dumps.trace import FALLBACK
from dumps.validate import validate

VOCABULARY = 5_000
TEXT = "Ada Lovelace takes it twice a day"
KEY = b"a key of the tests"


def large(token: int) -> int:
    """Ids that no other four bytes of a small dump look like by chance."""
    return 2_011 + 331 * token


def with_large_vocabulary(state: pb.RuntimeState) -> pb.RuntimeState:
    """The same run of a model whose ids are rare as bytes; texts are ones that can be searched for."""
    size, state.model.vocab_size = state.engine.block_size, VOCABULARY
    state.model.eos_token_ids[:] = [large(7)]
    for event in [event for event in state.trace_events if event.name == FALLBACK]:
        state.trace_events.remove(event)
    changed: dict[bytes, bytes] = {}
    for request in state.requests:
        request.sampling.logit_bias.add(token_id=large(1), bias=1.0)
        for name in ("prompt_token_ids", "output_token_ids"):
            if request.HasField(name):
                setattr(request, name, le32([large(token) for token in from_le32(getattr(request, name))]))
        if request.HasField("prompt_text"):
            request.prompt_text = TEXT
        ids = from_le32(request.prompt_token_ids) + from_le32(request.output_token_ids)
        old = [(token - 2_011) // 331 for token in ids]
        changed.update(zip(chain_of(old, size), chain_of(ids, size), strict=True))
    for entry in (*state.kv.prefix_hashes, *state.scheduler.start.prefix_hashes):
        entry.hash, entry.parent = changed.get(entry.hash, entry.hash), changed.get(entry.parent, entry.parent)
    for step in state.steps:
        for chunk in step.scheduled:
            if chunk.HasField("sampled_token"):
                chunk.sampled_token = large(chunk.sampled_token)
    state.logs.add(message=TEXT, level="INFO", logger="app")
    return state


def ids_of(state: pb.RuntimeState) -> list[list[int]]:
    return [from_le32(one.prompt_token_ids) + from_le32(one.output_token_ids) for one in state.requests]


def shared(lists: list[list[int]]) -> list[int]:
    """How long the common prefix of each pair of lists is."""
    return [
        next((at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
        for one, other in combinations(lists, 2)
    ]


@settings(max_examples=40)
@given(dumps())
def test_with_prompt_no_run_of_tokens_and_no_text_is_in_the_file(drawn: tuple[pb.RuntimeState, list[SectionData]]):
    state, sections = drawn
    state = with_large_vocabulary(state)
    assert not validate(state)
    with tempfile.TemporaryDirectory() as folder:
        whole, path = Path(folder) / "whole.pplx", Path(folder) / "redacted.pplx"
        write_dump(whole, state, [*sections, SectionData(kind="notes", data=TEXT.encode() * 40)])
        with open_dump(whole) as dump:
            redacted = redact_dump(dump, prompt=True, key=KEY)
            write_redacted(dump, redacted, path)
        assert path.stat().st_mode & 0o777 == 0o600
        with open_dump(path) as dump:
            dump.verify()
            data = path.read_bytes() + b"".join(dump.read_section(info.kind) for info in dump.sections)
            after = dump.state
            assert not validate(after)
    assert TEXT.encode() not in data
    eos = large(7)
    for request in state.requests:
        tokens = from_le32(request.prompt_token_ids) + from_le32(request.output_token_ids)
        runs = (tokens[at : at + 2] for at in range(len(tokens) - 1))
        assert not any(le32(run) in data for run in runs if any(token != eos for token in run))
    before_ids, after_ids = ids_of(state), ids_of(after)
    assert [len(one) for one in before_ids] == [len(one) for one in after_ids]
    assert shared(before_ids) == shared(after_ids)
    ends = [[token == eos for token in one] for one in before_ids]
    assert ends == [[token == eos for token in one] for one in after_ids]
    assert not any(one == other for a, b in zip(before_ids, after_ids, strict=True)
                   for one, other in zip(a, b, strict=True) if one != eos)  # fmt: skip


@settings(max_examples=40)
@given(dumps())
def test_without_prompt_ids_and_contents_stay_and_text_goes(drawn: tuple[pb.RuntimeState, list[SectionData]]):
    state, sections = drawn
    state = with_large_vocabulary(state)
    with tempfile.TemporaryDirectory() as folder:
        whole, path = Path(folder) / "whole.pplx", Path(folder) / "redacted.pplx"
        write_dump(whole, state, [*sections, SectionData(kind="notes", data=TEXT.encode() * 40)])
        with open_dump(whole) as dump:
            write_redacted(dump, redact_dump(dump), path)
            kept = {info.kind: dump.read_section(info.kind) for info in dump.sections if info.kind.startswith("kv-")}
        with open_dump(path) as dump:
            data = path.read_bytes() + b"".join(dump.read_section(info.kind) for info in dump.sections)
            assert {info.kind: dump.read_section(info.kind) for info in dump.sections} == kept
            assert not validate(dump.state)
            assert ids_of(dump.state) == ids_of(state)
    assert TEXT.encode() not in data


@given(st.one_of(states(), programs()), st.booleans())
def test_the_result_is_valid_and_says_what_was_removed(state: pb.RuntimeState, prompt: bool):
    assert not validate(state)
    before = state.SerializeToString(deterministic=True)
    redacted = redact(state, prompt=prompt)
    assert state.SerializeToString(deterministic=True) == before
    assert not validate(redacted.state)
    assert redacted.state.manifest.id != state.manifest.id
    told = {(one.path, one.what) for one in redacted.state.redactions}
    assert told == {(one.path, one.what) for one in redacted.changes}
    assert all(in_our_words(one.reason, {}) == one.reason for one in redacted.state.redactions)
    assert all(one.count for one in redacted.changes)
    assert all(one.count for one in redacted.kept)


@given(st.one_of(states(), programs()), st.booleans())
def test_redacting_again_changes_nothing_of_the_shape(state: pb.RuntimeState, prompt: bool):
    once = redact(state, prompt=prompt).state
    twice = redact(once, prompt=prompt).state
    assert list(twice.ledger) == list(once.ledger)
    assert list(twice.redactions) == list(once.redactions)
    for redacted in (once, twice):
        for request in redacted.requests:
            request.ClearField("prompt_token_ids")
            request.ClearField("output_token_ids")
        for step in redacted.steps:
            for chunk in step.scheduled:
                chunk.ClearField("sampled_token")
        for entry in (*redacted.kv.prefix_hashes, *redacted.scheduler.start.prefix_hashes):
            entry.hash = entry.parent = b""
        for exchange in redacted.exchanges:
            exchange.url = ""
        redacted.manifest.id = ""
    assert twice == once


@given(states(), st.booleans())
def test_mapped_ids_and_lost_digests_are_in_the_ledger(state: pb.RuntimeState, prompt: bool):
    redacted = redact(state, prompt=prompt).state
    had_ids = any(request.num_prompt_tokens and request.HasField("prompt_token_ids") for request in state.requests)
    grade = weakest(redacted, "requests[].prompt_token_ids").grade
    assert (grade == pb.SYNTHESISED) == (prompt and had_ids)
    if prompt and any(request.HasField("output_digests") for request in state.requests):
        assert weakest(redacted, "requests[].output_digests").grade == pb.ABSENT
        assert not any(request.HasField("output_digests") for request in redacted.requests)


def test_the_level_is_one_that_what_is_left_could_have_been_recorded_at():
    state = pb.RuntimeState()
    state.manifest.record_level = "full"
    state.requests.add(id="r", prompt_token_ids=le32([1]), prompt_text="", output_text=TEXT)
    for prompt in (False, True):
        after = redact(state, prompt=prompt).state
        assert after.manifest.record_level == "tokens"
        assert not after.requests[0].HasField("prompt_text")
        assert not after.requests[0].HasField("output_text")
    state.program.kind = "block"
    assert redact(state).state.manifest.record_level == "full"
    del state.requests[:]
    assert redact(state, prompt=True).state.manifest.record_level == "shape"


def test_ids_of_requests_are_made_up_and_stay_consistent():
    state = pb.RuntimeState()
    state.manifest.record_level = "tokens"
    for name in ("chatcmpl-1", "request-1", "ada@example.org"):
        state.requests.add(id=name)
    failure = state.failures.add(kind="contamination", message="request ada@example.org writes position 3")
    failure.read.writer = "chatcmpl-1"
    plain = redact(state).state
    assert [one.id for one in plain.requests] == ["chatcmpl-1", "request-1", "request-2"]
    assert plain.failures[0].message == "request request-2 writes position 3"
    mapped = redact(state, prompt=True).state
    names = [one.id for one in mapped.requests]
    assert len(set(names)) == 3
    assert mapped.failures[0].read.writer == names[0]
    assert mapped.failures[0].message == f"request {names[2]} writes position 3"
    assert "chatcmpl-1" not in names


def test_a_message_that_may_quote_people_goes_with_prompt_and_takes_its_verdict_along():
    state = pb.RuntimeState()
    state.failures.add(kind="exception", exception_type="ValueError", message=f"bad prompt: {TEXT}")
    plain, mapped = redact(state), redact(state, prompt=True)
    assert plain.state.failures[0].message == state.failures[0].message
    assert [one.path for one in plain.kept] == ["failures[].message"]
    assert mapped.state.failures[0].message == ""
    assert [claim.kept for claim in mapped.claims if claim.own] == [False]
    assert [claim.kept for claim in plain.claims if claim.own] == [True]


def test_secrets_in_launch_arguments_go_also_as_an_argument_of_their_own():
    state = pb.RuntimeState()
    state.manifest.launch_arguments.extend(["--api-key", "hunter2", "--port", "80", "--token=hunter3"])
    arguments = list(redact(state).state.manifest.launch_arguments)
    assert arguments == ["--api-key", "REMOVED", "--port", "80", "--token=REMOVED"]
