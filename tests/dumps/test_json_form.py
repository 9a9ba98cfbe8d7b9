"""States as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from dumps.json_form import DIGEST_BYTES, LE32_FIELDS, bytes_to_json, message_to_json
from dumps.schema import state_pb2 as pb
from dumps.strategies.valid import states
from tests.small_dump import small_state


def test_lists_digests_and_large_numbers():
    document = message_to_json(small_state())
    assert document["requests"][0]["prompt_token_ids"] == [1, 2, 3]
    assert document["requests"][0]["output_digests"] == ["0001020304050607"]
    assert document["kv"]["tables"][0]["blocks"] == [0, 1]
    assert document["steps"][0]["scheduled"][0]["new_blocks"] == [0]
    assert document["manifest"]["created_ns"] == "1700000000000000000"
    assert document["ledger"][0]["grade"] == "ABSENT"
    assert "finish_step" not in document["requests"][0]


def test_other_bytes_are_hex_and_damaged_lists_too():
    state = small_state()
    state.kv.free_blocks = b"abc"
    state.kv.prefix_hashes.add(block=1, hash=b"\xff\x00")
    document = message_to_json(state)
    assert document["kv"]["free_blocks"] == "616263"
    assert document["kv"]["prefix_hashes"][0]["hash"] == "ff00"


@given(states())
def test_every_state_is_one_json_document(state):
    json.dumps(message_to_json(state), allow_nan=False)


def test_not_a_number():
    state = small_state()
    state.requests[0].sampling.temperature = float("nan")
    assert message_to_json(state)["requests"][0]["sampling"]["temperature"] == "NaN"


@pytest.mark.parametrize("name", sorted([*LE32_FIELDS, *DIGEST_BYTES]))
def test_the_fields_that_are_named_exist(name):
    _, _, tail = name.partition("v0_9.")
    message, field = tail.split(".")
    known = getattr(pb, message).DESCRIPTOR.fields_by_name[field]
    assert known.full_name == name
    assert known.type == known.TYPE_BYTES
    assert bytes_to_json(name, b"") == []
