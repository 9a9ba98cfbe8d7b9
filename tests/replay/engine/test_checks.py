"""Where the first non-finite value of a cache sits."""

from __future__ import annotations

import pytest

from replay.engine.checks import first_non_finite
from replay.engine.failure import NonFinitePlace
from replay.engine.kv_store import KVStore
from tests.mixing import make_request

BLOCK = 4
NAN = float("nan")


@pytest.fixture
def kv() -> KVStore:
    return KVStore(num_blocks=10, block_size=BLOCK, num_layers=3, num_kv_heads=2, head_dim=8, dtype="bfloat16")


@pytest.fixture
def requests(kv):
    """Two requests of ten tokens, computed as a prefill of eight and two steps."""
    both = [make_request(range(10), [7, 2, 5], name="a"), make_request(range(10), [1, 9, 3], name="b")]
    for request in both:
        request.num_computed = 10
        for step, start, stop in ((20, 0, 8), (21, 8, 9), (22, 9, 10)):
            kv.stamp(kv.slots_of(request.blocks, start, stop), step=step, owner=request.id, first_position=start)
    return both


def damage(kv, request, position, *, layer=0, tensor=0, value=NAN):
    kv.data[layer, request.slot(position, BLOCK), tensor, 1, 3] = value


def test_a_clean_cache_leaves_the_logits(kv, requests):
    assert first_non_finite(kv, requests) == NonFinitePlace(where="logits")
    assert first_non_finite(kv, []) == NonFinitePlace(where="logits")


@pytest.mark.parametrize("value", [NAN, float("inf"), float("-inf")])
def test_a_damaged_value_is_found_with_its_writer(kv, requests, value):
    damage(kv, requests[0], 8, layer=1, tensor=1, value=value)
    assert first_non_finite(kv, requests) == NonFinitePlace(
        where="kv-cache", layer=1, tensor="value", block=5, slot=0, position=8, written_by_step=21
    )


def test_the_search_goes_by_layer_then_key_then_block_then_slot(kv, requests):
    first, second = requests
    found = []
    for request, position, layer, tensor in (
        (first, 2, 2, 1),
        (first, 9, 2, 0),
        (second, 0, 0, 1),
        (first, 1, 0, 0),  # block 7
        (first, 6, 0, 0),  # block 2, before it
        (first, 5, 0, 0),
    ):
        damage(kv, request, position, layer=layer, tensor=tensor)
        place = first_non_finite(kv, requests)
        found.append((place.layer, place.tensor, place.block, place.slot, place.position))
    assert found == [
        (2, "value", 7, 2, 2),
        (2, "key", 5, 1, 9),
        (0, "value", 1, 0, 0),
        (0, "key", 7, 1, 1),
        (0, "key", 2, 2, 6),
        (0, "key", 2, 1, 5),
    ]


def test_slots_that_nothing_reads_are_not_looked_at(kv, requests):
    damage(kv, requests[0], 9)
    requests[0].num_computed = 9
    kv.data[0, 4 * BLOCK :: 100] = NAN  # block 4 is nobody's
    assert first_non_finite(kv, requests).where == "logits"
    assert first_non_finite(kv, [requests[1]]).where == "logits"


def test_slots_of_the_step_in_flight_are_looked_at(kv, requests):
    """They are written and not yet counted as computed."""
    damage(kv, requests[0], 9)
    requests[0].num_computed = 9
    kv.just_written = kv.slots_of(requests[0].blocks, 9, 10)
    place = first_non_finite(kv, [requests[0]])
    assert (place.position, place.written_by_step) == (9, 22)
    assert first_non_finite(kv, [requests[1]]).where == "logits"


def test_an_unstamped_slot_has_no_writer(kv, requests):
    kv.fill_blocks([2], NAN)
    place = first_non_finite(kv, requests)
    assert (place.block, place.slot, place.position, place.written_by_step) == (2, 0, None, None)
