from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.errors import LimitExceeded
from dumps.prefix_hash import HASH_BYTES, chain_of
from dumps.redact.tokens import MAX_VOCABULARY, HashMap, TokenMap
from dumps.schema import state_pb2 as pb
from dumps.tensors import le32


def make_state(*prompts: list[int], vocabulary: int, eos: list[int]) -> pb.RuntimeState:
    state = pb.RuntimeState()
    state.model.vocab_size, state.engine.block_size = vocabulary, 2
    state.model.eos_token_ids.extend(eos)
    for prompt in prompts:
        state.requests.add(prompt_token_ids=le32(prompt), num_prompt_tokens=len(prompt))
    return state


@given(st.integers(3, 300), st.sets(st.integers(0, 2), max_size=1), st.binary(min_size=1, max_size=64))
def test_the_map_is_a_permutation_in_which_only_ends_stay(vocabulary: int, eos: set[int], key: bytes):
    tokens = TokenMap(make_state(vocabulary=vocabulary, eos=sorted(eos)), key)
    mapped = tokens.many(range(vocabulary))
    assert sorted(mapped) == list(range(vocabulary))
    assert {token for token in range(vocabulary) if mapped[token] == token} == eos


def test_another_key_is_another_permutation():
    state = make_state(vocabulary=1000, eos=[])
    assert TokenMap(state, b"1").many(range(1000)) != TokenMap(state, b"2").many(range(1000))


def test_unknown_ids_stay_and_those_beyond_the_vocabulary_stay_beyond_and_apart():
    state = make_state([-1, 5, 90, 70], vocabulary=10, eos=[])
    tokens = TokenMap(state, b"key")
    assert tokens[-1] == -1
    assert tokens[5] < 10
    assert sorted(tokens.many([90, 70])) == [10, 11]


def test_without_a_known_vocabulary_the_largest_id_bounds_it():
    state = make_state([4, 9, 2], vocabulary=0, eos=[])
    mapped = TokenMap(state, b"key").many(range(10))
    assert sorted(mapped) == list(range(10))


def test_a_vocabulary_that_no_model_has_is_refused():
    with pytest.raises(LimitExceeded, match="vocab_size"):
        TokenMap(make_state(vocabulary=MAX_VOCABULARY + 1, eos=[]), b"key")


def test_stop_ids_and_biases_are_mapped_along():
    state = make_state([3, 4], vocabulary=50, eos=[0])
    sampling = state.requests[0].sampling
    sampling.stop_token_ids.extend([0, 4])
    sampling.logit_bias.add(token_id=3, bias=1.0)
    tokens = TokenMap(state, b"key")
    tokens.apply(state)
    assert list(sampling.stop_token_ids) == [0, tokens[4]]
    assert sampling.logit_bias[0].token_id == tokens[3]
    assert state.requests[0].prompt_token_ids == le32([tokens[3], tokens[4]])


def test_hashes_of_known_blocks_are_those_of_the_mapped_tokens_and_all_others_are_made_anew():
    prompt = [1, 2, 3, 4]
    state = make_state(prompt, vocabulary=50, eos=[])
    first, second = chain_of(prompt, 2)
    foreign = chain_of([7, 8, 9, 9], 2)
    for block, (own, parent) in enumerate([(first, b""), (second, first), (foreign[0], b""), (foreign[1], foreign[0])]):
        state.kv.prefix_hashes.add(block=block, hash=own, parent=parent)
    tokens = TokenMap(state, b"ids")
    hashes = HashMap(state, tokens, b"blocks")
    hashes.apply(state)
    mapped = chain_of(tokens.many(prompt), 2)
    entries = state.kv.prefix_hashes
    assert [entries[0].hash, entries[1].hash, entries[1].parent] == [*mapped, mapped[0]]
    assert entries[3].parent == entries[2].hash != foreign[0]
    assert len(entries[2].hash) == HASH_BYTES
    assert entries[2].parent == b""
    assert entries[2].hash not in chain_of(tokens.many([7, 8]), 2)
