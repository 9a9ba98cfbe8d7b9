"""Tiles against the definition of causal attention over a paged cache."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.attention import Placed, TileSizes, exact_context, stock_context
from replay.engine.destinations import last_of_each
from replay.engine.kernels.exact import exact_attention
from replay.engine.kernels.stock import stock_attention
from replay.engine.kv_store import KVStore
from replay.engine.schedule import Chunk
from replay.errors import UnsupportedModel
from tests.mixing import make_request

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4


def make_store() -> KVStore:
    store = KVStore(num_blocks=64, block_size=BLOCK, num_layers=1, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="float32")
    store.fill_blocks(range(64), float("nan"))
    return store


def attend(kernel, chunks, store, sizes, windows, query, key, value):
    """Results [rows, heads, dim] by window: layers of different windows share a step's context."""
    placed = [Placed(chunk, store) for chunk in chunks]
    if kernel == "exact":
        context = exact_context(placed, num_heads=HEADS, sizes=sizes, windows=windows)
        function = exact_attention
    else:
        context, function = stock_context(placed, windows=windows), stock_attention
    layer = SimpleNamespace(layer_idx=0)
    results = {}
    for window in windows:
        result, _ = function(
            layer, query, key, value, None, DIM**-0.5, pplx_step=context, dropout=0.0, sliding_window=window
        )
        assert result.shape == (1, query.shape[2], HEADS, DIM)
        results[window] = result[0]
    return results


def definition(query, keys, values):
    """Softmax of scores times values for one query [heads, dim] over its keys [n, kv_heads, dim], in float64."""
    repeat = HEADS // KV_HEADS
    result = torch.empty((HEADS, DIM), dtype=torch.float64)
    for head in range(HEADS):
        scores = keys[:, head // repeat].double() @ query[head].double() * DIM**-0.5
        result[head] = torch.softmax(scores, dim=0) @ values[:, head // repeat].double()
    return result


@pytest.mark.parametrize("kernel", ["exact", "stock"])
@given(st.data())
def test_each_row_attends_to_its_own_past(kernel, data):
    """Any mix of chunk lengths at any starts and of windows, over shuffled blocks; unwritten slots hold NaN."""
    sizes = TileSizes(
        rows=4,
        decode=data.draw(st.sampled_from([2, 4])),
        prefill=data.draw(st.sampled_from([4, 8])),
        keys=16,
        alone=data.draw(st.booleans()),
        bulk=data.draw(st.sampled_from([0, 5, 16])),
        tails=data.draw(st.sampled_from([(), (4,), (3, 8, 12)])),
    )
    spans = data.draw(st.lists(st.tuples(st.integers(0, 24), st.integers(1, 13)), min_size=1, max_size=4))
    blocks = data.draw(st.permutations(range(64)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    store = make_store()
    chunks, histories, used = [], [], 0
    for index, (start, count) in enumerate(spans):
        needed = -(-(start + count) // BLOCK)
        request = make_request(range(start + count), blocks[used : used + needed], name=str(index))
        used += needed
        history = torch.randn((start, 2, KV_HEADS, DIM), generator=generator)
        store.data[0, torch.from_numpy(store.slots_of(request.blocks, 0, start))] = history
        histories.append(history)
        chunks.append(Chunk(request, start, count))
    rows = sizes.pad_rows(sum(count for _, count in spans)) if kernel == "exact" else sum(count for _, count in spans)
    query = torch.randn((1, HEADS, rows, DIM), generator=generator)
    key, value = torch.randn((2, 1, KV_HEADS, rows, DIM), generator=generator)
    before = store.data.clone()
    windows = [None, *data.draw(st.lists(st.integers(1, 40), unique=True, max_size=2))]
    results = attend(kernel, chunks, store, sizes, windows, query, key, value)
    row = 0
    for chunk, history in zip(chunks, histories, strict=True):
        stop = row + chunk.num_tokens
        keys = torch.cat([history[:, 0], key[0, :, row:stop].transpose(0, 1)])
        values = torch.cat([history[:, 1], value[0, :, row:stop].transpose(0, 1)])
        slots = torch.from_numpy(store.slots_of(chunk.request.blocks, chunk.start, chunk.start + chunk.num_tokens))
        assert torch.equal(store.data[0, slots, 0], keys[chunk.start :])
        assert torch.equal(store.data[0, slots, 1], values[chunk.start :])
        before[0, slots] = store.data[0, slots]
        for offset in range(chunk.num_tokens):
            seen = chunk.start + offset + 1
            for window, result in results.items():
                past = slice(0 if window is None else max(0, seen - window), seen)
                expected = definition(query[0, :, row + offset], keys[past], values[past])
                assert torch.allclose(result[row + offset].double(), expected, atol=1e-5)
        row = stop
    assert all(torch.isfinite(result).all() for result in results.values())
    # Nothing but the step's own slots has changed.
    assert torch.equal(before.nan_to_num(7.0), store.data.nan_to_num(7.0))


@pytest.mark.parametrize("kernel", ["exact", "stock"])
@pytest.mark.parametrize("option", [{"softcap": 50.0}, {"s_aux": torch.zeros(HEADS)}])
def test_an_option_that_the_kernels_do_not_compute_is_refused(kernel, option):
    store = make_store()
    placed = [Placed(Chunk(make_request(range(3), [0]), 0, 3), store)]
    sizes = TileSizes(rows=1)
    context = exact_context(placed, num_heads=HEADS, sizes=sizes) if kernel == "exact" else stock_context(placed)
    function = exact_attention if kernel == "exact" else stock_attention
    query, key, value = (torch.zeros((1, heads, 3, DIM)) for heads in (HEADS, KV_HEADS, KV_HEADS))
    layer = SimpleNamespace(layer_idx=0)
    function(layer, query, key, value, None, 1.0, pplx_step=context, softcap=None)
    with pytest.raises(UnsupportedModel, match=next(iter(option))):
        function(layer, query, key, value, None, 1.0, pplx_step=context, **option)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_a_slot_that_stands_twice_is_written_by_its_last_row(slots):
    rows = last_of_each(np.array(slots))
    if len(set(slots)) == len(slots):
        assert rows is None
        return
    assert rows is not None
    expected = {slot: row for row, slot in enumerate(slots)}
    assert rows.tolist() == sorted(expected.values())


def test_two_requests_that_write_one_slot_leave_what_the_last_one_wrote():
    """As after a defect that gave a block twice. Without a rule a GPU would leave any of them."""
    store = make_store()
    chunks = [Chunk(make_request(range(3), [7]), 0, 3), Chunk(make_request(range(2), [7], name="other"), 0, 2)]
    context = stock_context([Placed(chunk, store) for chunk in chunks])
    assert all(len(set(to.slots.tolist())) == to.slots.numel() for to in context.destinations)
    key = torch.arange(5.0).view(1, 1, 5, 1).expand(1, KV_HEADS, 5, DIM)
    context.write(0, key, key + 10)
    first = 7 * BLOCK
    assert store.data[0, first : first + 3, 0, 0, 0].tolist() == [3, 4, 2]
    assert store.data[0, first : first + 3, 1, 0, 0].tolist() == [13, 14, 12]


@given(st.integers(0, 3000), st.integers(1, 1500), st.sampled_from([(), (64, 192, 384)]), st.sampled_from([128, 256]))
def test_calls_of_a_long_chunk_cover_it_and_end_with_blocks_of_keys(start, count, tails, bulk):
    sizes = TileSizes(keys=512, bulk=bulk, tails=tails)
    calls = sizes.cut(start, count)
    assert [stop for _, stop in calls[:-1]] == [first for first, _ in calls[1:]]
    assert (calls[0][0], calls[-1][1]) == (0, count)
    for first, stop in calls:
        assert 0 < stop - first <= bulk
        assert (start + first) // 512 == (start + stop - 1) // 512


def test_keys_are_padded_to_the_next_tail():
    sizes = TileSizes(keys=512, tails=(64, 192))
    assert [sizes.pad_keys(keys) for keys in (1, 64, 65, 192, 193, 512, 513, 577)] == [
        64, 64, 192, 192, 512, 512, 576, 704,
    ]  # fmt: skip
    assert TileSizes(keys=512).pad_keys(1) == 512


def test_short_chunks_share_a_call_unless_one_is_much_longer():
    sizes = TileSizes(rows=4, decode=2, keys=512, tails=(64, 128, 384))
    store = KVStore(num_blocks=64, block_size=16, num_layers=1, num_kv_heads=1, head_dim=8, dtype="float32")
    lengths = (70, 500, 20, 380, 120)
    placed = [Placed(Chunk(make_request(range(length), range(32)), length - 1, 1), store) for length in lengths]
    context = exact_context(placed, num_heads=2, sizes=sizes)
    assert [(group.rows.tolist(), group.buffer.shape[1]) for group in context.groups] == [
        ([1, 3], 512),
        ([0, 4, 2], 128),
    ]
