"""The paged cache: addressing, contents in and out, stamps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay.engine import kv_store
from replay.engine.kv_store import NEVER, KVStore


def make_store(dtype: str = "float32", num_blocks: int = 6, quant_bits: int = 0) -> KVStore:
    return KVStore(
        num_blocks=num_blocks,
        block_size=4,
        num_layers=2,
        num_kv_heads=3,
        head_dim=8,
        dtype=dtype,
        quant_bits=quant_bits,
    )


def filled(store: KVStore, seed: int = 0) -> KVStore:
    """Random keys and values in every slot, written as a step writes them."""
    values = torch.randn((store.num_slots, 2, 3, 8), generator=torch.Generator().manual_seed(seed))
    for layer in range(store.num_layers):
        store.write(layer, torch.arange(store.num_slots), (values + layer).to(store.compute_dtype))
    return store


def gathered(store: KVStore, layer: int, slots: list[int]) -> torch.Tensor:
    out = torch.empty((len(slots), 2, 3, 8), dtype=store.compute_dtype)
    store.gather(layer, torch.tensor(slots), out)
    return out


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_is_read_as_it_was_written_within_half_a_scale(dtype):
    plain, store = filled(make_store(dtype)), filled(make_store(dtype, quant_bits=8))
    assert store.scales is not None
    for layer in range(2):
        slots = [23, 0, 7]
        wanted, got = gathered(plain, layer, slots).float(), gathered(store, layer, slots).float()
        bound = wanted.abs().amax(dim=3, keepdim=True) * (1 / 254 + (2**-22 if dtype == "float32" else 2**-8))
        assert (wanted - got).abs().max() > 0
        assert ((wanted - got).abs() <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_contents_go_from_one_store_to_another_with_their_scales(dtype):
    source, target = filled(make_store(dtype, quant_bits=8)), make_store(dtype, quant_bits=8)
    contents, scales = source.read_blocks([2, 4]), source.read_scales([2, 4])
    assert scales is not None
    assert [contents.dtype.name, scales.dtype.name] == ["int8", "float32"]
    assert scales.shape == contents.shape[:-1] == (2, *source.block_shape[:-1])
    for array in (contents, scales):
        array.flags.writeable = False
    target.write_blocks([1, 0], contents, scales)
    back = target.read_scales([1, 0])
    assert back is not None
    assert (target.read_blocks([1, 0]).tobytes(), back.tobytes()) == (contents.tobytes(), scales.tobytes())
    assert torch.equal(gathered(source, 1, [8, 16, 19]), gathered(target, 1, [4, 0, 3]))
    assert not gathered(target, 1, [8]).any()


def test_scales_that_are_missing_superfluous_or_of_another_shape_are_refused():
    plain, store = make_store(), make_store(quant_bits=8)
    contents, scales = store.read_blocks([0]), store.read_scales([0])
    assert scales is not None
    assert plain.read_scales([0]) is None
    with pytest.raises(ValueError, match="without scales"):
        store.write_blocks([0], contents)
    with pytest.raises(ValueError, match="with scales"):
        plain.write_blocks([0], plain.read_blocks([0]), scales)
    with pytest.raises(ValueError, match="expected float32"):
        store.write_blocks([0], contents, scales[..., :1])
    with pytest.raises(ValueError, match="expected int8"):
        store.write_blocks([0], plain.read_blocks([0]), scales)
    with pytest.raises(ValueError, match="4 bits"):
        make_store(quant_bits=4)


@pytest.mark.parametrize("quant_bits", [0, 8])
def test_a_copied_block_is_the_same_and_apart(quant_bits):
    store = filled(make_store(quant_bits=quant_bits))
    store.stamp([8, 9], step=3, owner="a", first_position=5)
    before = gathered(store, 1, [8, 9, 10, 11])
    store.copy_block(2, 5)
    assert torch.equal(gathered(store, 1, [20, 21, 22, 23]), before)
    assert (store.owner[21], store.position[20], store.written_step[21]) == ("a", 5, 3)
    store.fill_blocks([2], float("nan"))
    assert torch.equal(gathered(store, 1, [20, 21, 22, 23]), before)


@pytest.mark.parametrize("quant_bits", [0, 8])
def test_a_value_that_is_not_finite_is_seen_where_it_lies(quant_bits):
    store = filled(make_store("bfloat16", quant_bits=quant_bits))
    damaged = torch.ones((1, 2, 3, 8), dtype=torch.bfloat16)
    damaged[0, 1, 2, 3] = float("nan")
    store.write(1, torch.tensor([9]), damaged)
    assert store.finite(1, torch.tensor([8, 9])).tolist() == [[True, True], [True, False]]
    assert store.finite(0, torch.tensor([8, 9])).all()
    assert all(store.finite_block(block) for block in range(6)), "no step wrote that slot"
    store.stamp([9], step=3, owner="a", first_position=5)
    assert [store.finite_block(block) for block in range(6)] == [block != 2 for block in range(6)]
    assert torch.isnan(gathered(store, 1, [9])[0, 1, 2, 3])


@pytest.mark.parametrize("value", [float("nan"), 0.0, -1.5])
def test_poison_of_an_int8_block_reads_as_what_it_is(value):
    store = filled(make_store(quant_bits=8))
    kept = gathered(store, 0, [3, 8])
    store.fill_blocks([1], value)
    assert torch.allclose(gathered(store, 0, [4, 7]), torch.tensor(value), rtol=1e-6, equal_nan=True)
    assert torch.equal(gathered(store, 0, [3, 8]), kept)


def test_reading_copies():
    store = make_store()
    contents = store.read_blocks([0])
    store.data += 1
    assert not contents.any()


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_bytes_per_block_is_what_a_block_takes(dtype, size):
    store = make_store(dtype)
    assert store.bytes_per_block * store.num_blocks == store.data.numel() * size == store.data.nbytes


def test_bytes_per_block_of_int8_count_its_scales():
    store = make_store(quant_bits=8)
    assert store.scales is not None
    assert store.bytes_per_block * store.num_blocks == store.data.nbytes + store.scales.nbytes
    assert store.data.nbytes == store.data.numel()


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


@pytest.mark.parametrize(("dtype", "quant_bits"), [("float32", 0), ("bfloat16", 0), ("float32", 8)])
def test_blocks_move_the_same_way_on_any_device(dtype, quant_bits):
    """What a GPU's cache does to move blocks, done to one in memory: reads and writes are those of the other way."""
    blocks, store = [5, 0, 3], filled(make_store(dtype, quant_bits=quant_bits))
    other = make_store(dtype, quant_bits=quant_bits)
    pairs: list[tuple[Any, Any, Any]] = [(store.data, other.data, store.read_blocks(blocks))]
    if quant_bits:
        pairs.append((store.scales, other.scales, store.read_scales(blocks)))
    for held, target, contents in pairs:
        contents.flags.writeable = False
        taken = kv_store._take_blocks(store._paged(held), blocks)
        assert taken.dtype == contents.dtype
        assert np.array_equal(taken, contents)
        kv_store._put_blocks(other._paged(target), [1, 2, 4], contents)
    assert np.array_equal(other.read_blocks([1, 2, 4]), store.read_blocks(blocks))
    assert not other.read_blocks([0, 3, 5]).any()
    ours, theirs = other.read_scales([1, 2, 4]), store.read_scales(blocks)
    assert (ours is None) == (theirs is None) == (not quant_bits)
    assert ours is None or theirs is None or np.array_equal(ours, theirs)
