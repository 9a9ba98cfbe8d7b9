"""The paged cache: addressing, contents in and out, stamps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.kv_store import NEVER, KVStore


def make_store(dtype: str = "float32", num_blocks: int = 6) -> KVStore:
    return KVStore(num_blocks=num_blocks, block_size=4, num_layers=2, num_kv_heads=3, head_dim=8, dtype=dtype)


def numbered(store: KVStore):
    """Every element its own number, exactly representable in float32."""
    store.data.copy_(torch.arange(store.data.numel(), dtype=torch.float32).view(store.data.shape))
    return store


@given(st.permutations(range(6)), st.integers(0, 24), st.integers(0, 24))
def test_slots_follow_the_block_table(blocks, one, other):
    start, stop = min(one, other), max(one, other)
    slots = make_store().slots_of(blocks, start, stop)
    assert slots.tolist() == [blocks[p // 4] * 4 + p % 4 for p in range(start, stop)]


def test_block_contents_have_the_layout_of_a_dump():
    store = numbered(make_store())
    contents = store.read_blocks([5, 2])
    assert contents.shape == (2, *store.block_shape) == (2, 2, 2, 4, 3, 8)
    for row, block in enumerate((5, 2)):
        for layer in range(2):
            for which in range(2):
                for slot in range(4):
                    expected = store.data[layer, block * 4 + slot, which].numpy()
                    assert np.array_equal(contents[row, layer, which, slot], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_contents_go_from_one_store_to_another_bit_for_bit(dtype):
    source, target = make_store(dtype), make_store(dtype)
    source.data.copy_(torch.randn(source.data.shape))
    source.data[0, 9, 1, 0, 0] = float("nan")
    contents = source.read_blocks([2, 4])
    assert contents.dtype == (np.uint16 if dtype == "bfloat16" else np.float32)
    contents.flags.writeable = False  # as those of a mapped file
    target.write_blocks([1, 0], contents)
    assert target.read_blocks([1, 0]).tobytes() == contents.tobytes()
    assert not target.data[:, 8:].any()


def test_contents_of_another_shape_or_type_are_refused():
    store = make_store()
    with pytest.raises(ValueError, match="expected"):
        store.write_blocks([0], np.zeros((2, *store.block_shape), dtype=np.float32))
    with pytest.raises(ValueError, match="float64"):
        store.write_blocks([0], np.zeros((1, *store.block_shape)))


def test_reading_copies():
    store = make_store()
    contents = store.read_blocks([0])
    store.data += 1
    assert not contents.any()


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_bytes_per_block_is_what_a_block_takes(dtype, size):
    store = make_store(dtype)
    assert store.bytes_per_block * store.num_blocks == store.data.numel() * size == store.data.nbytes


def test_stamps_say_who_wrote_a_slot_and_poisoning_clears_them():
    store = make_store()
    store.stamp([4, 5, 11], step=7, owner="a", first_position=30)
    assert store.written_step[[4, 5, 11]].tolist() == [7, 7, 7]
    assert store.position[[4, 5, 11]].tolist() == [30, 31, 32]
    assert (store.owner[11], store.owner[10]) == ("a", None)
    assert store.written_step[10] == NEVER
    store.fill_blocks([1], float("nan"))
    assert torch.isnan(store.data[:, 4:8]).all()
    assert not torch.isnan(store.data[:, 8:]).any()
    assert (store.owner[4], store.written_step[4], store.position[5]) == (None, NEVER, NEVER)
    assert store.owner[11] == "a"
