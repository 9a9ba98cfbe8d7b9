"""Tiles against the definition of causal attention over a paged cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.attention import Placed, TileSizes, exact_context, stock_context
from replay.engine.kernels.exact import exact_attention
from replay.engine.kernels.stock import stock_attention
from replay.engine.kv_store import KVStore
from replay.engine.schedule import Chunk
from tests.mixing import make_request

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4


def make_store() -> KVStore:
    store = KVStore(num_blocks=64, block_size=BLOCK, num_layers=1, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="float32")
    store.fill_blocks(range(64), float("nan"))
    return store


def attend(kernel, chunks, store, sizes, query, key, value):
    if kernel == "exact":
        context = exact_context([Placed(chunk, store) for chunk in chunks], num_heads=HEADS, sizes=sizes)
        function = exact_attention
    else:
        context, function = stock_context([Placed(chunk, store) for chunk in chunks]), stock_attention
    layer = SimpleNamespace(layer_idx=0)
    result, _ = function(layer, query, key, value, None, DIM**-0.5, pplx_step=context)
    assert result.shape == (1, query.shape[2], HEADS, DIM)
    return result[0]


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
    """Any mix of chunk lengths at any starts, over shuffled blocks; unwritten slots hold NaN."""
    sizes = TileSizes(
        rows=4, decode=data.draw(st.sampled_from([2, 4])), prefill=data.draw(st.sampled_from([4, 8])), keys=16
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
    result = attend(kernel, chunks, store, sizes, query, key, value)
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
            expected = definition(query[0, :, row + offset], keys[:seen], values[:seen])
            assert torch.allclose(result[row + offset].double(), expected, atol=1e-5)
        row = stop
    assert torch.isfinite(result).all()
    # Nothing but the step's own slots has changed.
    assert torch.equal(before.nan_to_num(7.0), store.data.nan_to_num(7.0))
