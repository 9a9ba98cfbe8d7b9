"""The probe finds forms that are exact, and turns down those that are not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay.engine import probe
from replay.engine.attention import TileSizes
from replay.engine.kernels.activations import ExactGeluTanh, ExactSiLU
from replay.engine.kernels.exact import KERNELS, MOST_PADDED, ExactLinear, LinearForm, packing_available, plain_linear
from replay.engine.probe import AttentionShape
from replay.engine.probe_rows import random_rows, telling_rows


def weight_of(shape, dtype=torch.float32):
    return random_rows(shape[0], shape[1], dtype) * 0.05


def depends_on_rows(weight, *, sizes):
    """A linear layer that is a little off for calls of the given row counts, in one row of sixty-four."""
    function = plain_linear(weight, None)

    def apply(rows):
        result = function(rows)
        if rows.shape[0] in sizes:
            odd = (rows[:, 0] * 1000).long() % 64 == 0
            result[odd] = torch.nextafter(result[odd], torch.tensor(float("inf")))
        return result

    return apply


def sizes(tile, *, without=(), most=512):
    return tuple(size for size in probe.tried_sizes(most, tile) if size not in without)


@pytest.mark.parametrize("size", [8, 12, 28, 48, 64, 512])
def test_a_size_at_which_a_layer_differs_is_seen(size):
    weight = weight_of((32, 48))
    rows = random_rows(probe.ROWS, 48, torch.float32)
    assert probe.agreeing_sizes(plain_linear(weight, None), rows, tile=4) == sizes(4)
    found = probe.agreeing_sizes(depends_on_rows(weight, sizes=(size,)), rows, tile=4)
    assert found == sizes(4, without=(size,))
    assert probe.agreeing_sizes(depends_on_rows(weight, sizes=(4,)), rows, tile=4) == (4,)


def test_the_cheapest_form_that_passes_is_taken():
    weight = weight_of((32, 48))
    good, bad, worse = plain_linear(weight, None), *(depends_on_rows(weight, sizes=odd) for odd in ((512,), (96, 128)))
    first, second = (LinearForm(kernel=kernel, sizes=sizes(4)) for kernel in ("first", "second"))
    assert probe.choose([("first", good), ("second", good)], weight, None, tile=4) == first
    assert probe.choose([("first", bad), ("second", good)], weight, None, tile=4) == second
    # Where none passes, that with the longest calls.
    longest = LinearForm(kernel="second", sizes=sizes(4, without=(512,)), limited=True)
    assert probe.choose([("first", worse), ("second", bad)], weight, None, tile=4) == longest


def test_when_none_passes_every_call_has_the_same_row_count():
    weight = weight_of((32, 48))
    bad = depends_on_rows(weight, sizes=(16,))
    form = probe.choose([("only", bad)], weight, None, tile=16)
    assert form == LinearForm(kernel="only", sizes=(16,), limited=True)
    assert str(form) == "only/16-to-16"
    layer = ExactLinear(bad, form)
    rows = random_rows(64, 48, torch.float32)
    expected = torch.cat([layer(part[None])[0] for part in rows.split(16)])
    assert torch.equal(layer(rows[None])[0], expected)


@pytest.mark.parametrize("odd", [(48,), (32, 48, 64), (512,), (8, 12, 20, 256)], ids=str)
def test_calls_of_sizes_that_differ_are_not_made(odd):
    """With AMX a layer was seen whose rows differ in calls of 33 to 48 rows, and in no shorter and no longer ones."""
    weight = weight_of((32, 48))
    differs = depends_on_rows(weight, sizes=odd)
    layer = ExactLinear(differs, probe.choose([("only", differs)], weight, None, tile=4))
    rows = random_rows(600, 48, torch.float32)
    expected = torch.cat([differs(part) for part in rows.split(4)])
    for count in range(1, 600):
        assert torch.equal(layer(rows[None, :count])[0], expected[:count]), count


def test_a_kernel_that_computes_something_else_is_left_out():
    weight = weight_of((32, 48))
    wrong = plain_linear(weight * 1.01, None)
    good = plain_linear(weight, None)
    assert probe.choose([("wrong", wrong), ("right", good)], weight, None, tile=4).kernel == "right"
    with pytest.raises(probe.NoExactKernel, match="no linear kernel"):
        probe.choose([("wrong", wrong)], weight, None, tile=4)


def test_one_failing_layer_costs_the_small_tile_only_if_the_large_one_helps(monkeypatch):
    good, bad = weight_of((32, 48)), weight_of((24, 48))
    odd: dict[int, tuple[int, ...]] = {32: ()}
    monkeypatch.setitem(KERNELS, "plain", lambda weight, bias: depends_on_rows(weight, sizes=odd[weight.shape[0]]))
    monkeypatch.setattr(probe, "packing_available", lambda: False)

    def found():
        tile, forms = probe.choose_tile([(good, None), (bad, None)])
        return tile, [str(form) for form in forms]

    # Calls of 4 rows are the odd ones out, so nothing is left to differ at a tile of 16.
    odd[24] = (4,)
    assert found() == (16, ["plain", "plain"])
    # Longer calls leave out one size.
    odd[24] = (4, 256)
    assert found() == (16, ["plain", "plain/16-to-512"])
    odd[24] = (256,)
    assert found() == (4, ["plain", "plain/4-to-512"])
    # Calls of up to 32 rows are the odd ones out, as with AMX: a larger tile for that layer alone.
    odd[24] = (4, 8, 12, 16, 20, 24, 28, 32)
    assert found() == (16, ["plain", "plain/64-to-512"])
    # So are all but two of 16 rows: the few that are like them are too far apart.
    odd[24] = (4, 16, 32, 128, 512)
    assert found() == (16, ["plain", "plain/64-to-448"])
    # Here a larger tile would only make calls shorter.
    odd[24] = (4, 48, 96, 128, 192, 256, 320, 384, 448, 512)
    assert found() == (16, ["plain", "plain/16-to-112"])


@pytest.mark.parametrize("shape", [(64, 1539), (256, 64), (96, 576)], ids=str)
def test_an_order_of_sums_that_bfloat16_hides_is_seen(shape):
    """As with AMX, where the layer of 1,539 columns differed in 2 of 2,112 values above 32 rows."""
    weight = weight_of(shape, torch.bfloat16)
    columns = torch.arange(shape[1]).split(-(-shape[1] // 5))

    def two_orders(rows):
        wide, exact = rows.float(), weight.float().T
        total = torch.zeros((rows.shape[0], shape[0]))
        for part in columns if rows.shape[0] <= 32 else columns[::-1]:
            total += wide[:, part] @ exact[part]
        return total.bfloat16()

    for count in (probe.ROWS, probe.HEAD_ROWS):
        assert probe.agreeing_sizes(two_orders, telling_rows(count, weight), tile=16) == (16, 32)
    plain = random_rows(probe.ROWS, shape[1], torch.bfloat16)
    short = torch.cat([two_orders(part) for part in plain.split(16)])
    assert (short != two_orders(plain)).any(dim=1).sum() < probe.ROWS / 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 1539), (3, 64), (500, 7), (1, 1)], ids=str)
def test_half_of_the_telling_rows_cancel_in_one_output_each(shape, dtype):
    weight = weight_of(shape, dtype)
    rows = telling_rows(128, weight)
    assert torch.equal(rows, telling_rows(128, weight))
    products = rows.double()[:, None, :] * weight.double()
    left = products.sum(dim=2).abs() / products.abs().sum(dim=2).clamp(min=1e-300)
    cancels = left.min(dim=1).values < 1e-12
    assert cancels.sum() >= 64
    hit = left[cancels].argmin(dim=1)
    assert {0, shape[0] - 1} <= set(hit.tolist())
    assert not cancels.all()
    # Both kinds stand at every place of a call.
    places = cancels.view(-1, 4)
    assert places.any(dim=0).all()
    assert not places.all(dim=0).any()


def test_a_weight_of_zeros_has_telling_rows_too():
    weight = torch.zeros((4, 6), dtype=torch.bfloat16)
    assert torch.isfinite(telling_rows(16, weight)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_real_kernels_give_a_usable_form(dtype):
    weight = weight_of((192, 576), dtype)
    tile, (form,) = probe.choose_tile([(weight, None)])
    function = KERNELS[form.kernel](weight, None)
    layer = ExactLinear(function, form)
    rows = random_rows(96, 576, dtype)
    expected = torch.cat([layer(part) for part in rows.split(tile)])
    assert torch.allclose(expected.float(), function(rows).float(), rtol=2e-2, atol=1e-5)
    for multiple in (2, 3, 6):
        assert torch.equal(torch.cat([layer(part) for part in rows.split(tile * multiple)]), expected)


@pytest.mark.skipif(not packing_available(), reason="this torch build has no packed linear")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_linear_computes_the_layer(dtype):
    weight, bias = weight_of((40, 64), dtype), weight_of((1, 40), dtype)[0]
    rows = random_rows(8, 64, dtype)
    result = KERNELS["packed"](weight, bias)(rows)
    expected = rows.float() @ weight.float().T + bias.float()
    assert torch.allclose(result.float(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)


def test_rows_are_filled_up_to_a_tile():
    function, seen = plain_linear(weight_of((32, 48)), None), []

    def record(rows):
        seen.append(rows.shape[0])
        return function(rows)

    layer = ExactLinear(record, LinearForm(kernel="plain", sizes=(64, 128)))
    rows = random_rows(144, 48, torch.float32)
    assert torch.allclose(layer(rows[None]), function(rows)[None], rtol=1e-5, atol=1e-5)
    assert seen == [128, 64]


def test_calls_longer_than_proven_are_split():
    seen = []

    def record(rows):
        assert rows.dim() == 2, "for a part of a longer call with three dimensions torch takes its kernel for batches"
        seen.append(rows.shape[0])
        return rows

    layer = ExactLinear(record, LinearForm(kernel="packed", sizes=(4, 16, 64)))
    rows = torch.arange(300.0).view(1, 150, 2)
    assert torch.equal(layer(rows), rows)
    assert seen == [64, 64, 16, 4, 4]


@given(
    rest=st.sets(st.integers(2, 128), max_size=12),
    count=st.integers(0, 2000),
    tile=st.sampled_from([1, 4, 16, 64]),
)
def test_calls_hold_all_rows_and_few_more(rest, count, tile):
    form = LinearForm(kernel="plain", sizes=tuple(sorted({tile, *(tile * multiple for multiple in rest)})))
    calls = form.calls(count)
    assert set(calls) <= set(form.sizes)
    assert sum(calls) >= count
    assert sum(calls) < max(MOST_PADDED * count, count + tile)
    assert sum(calls[:-1]) < max(count, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("exact", "stock"),
    [
        (ExactSiLU(), torch.nn.functional.silu),
        (ExactGeluTanh(), partial(torch.nn.functional.gelu, approximate="tanh")),
    ],
)
def test_exact_activations_are_the_stock_ones_whatever_the_shape(dtype, exact, stock):
    values = (random_rows(1, 1003, dtype) * 6)[0]
    values[:4] = torch.tensor([200.0, -200.0, 0.0, -88.0], dtype=dtype)
    whole = exact(values)
    assert torch.allclose(whole.double(), stock(values.double()), rtol=8e-3, atol=1e-6)
    for length in (1, 3, 7, 16, 33):
        assert torch.equal(torch.cat([exact(part) for part in values.split(length)]), whole)
    assert torch.isfinite(whole).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 2, 16), (64, 1, 32)])
def test_attention_tiles_are_found(dtype, heads, kv_heads, dim):
    sizes = probe.choose_attention(AttentionShape(heads, kv_heads, dim, dtype), max_keys=2048, rows=4)
    assert sizes.rows == 4
    assert 2 <= sizes.decode <= sizes.prefill
    assert sizes.prefill * (heads // kv_heads) < 192
    assert sizes.keys in (512, 2048)


def test_where_padding_changes_bits_the_length_is_fixed(monkeypatch):
    plain = torch.nn.functional.scaled_dot_product_attention

    def off_at_1024(query, key, value, **options):
        result = plain(query, key, value, **options)
        return result * (1 + 1e-6) if key.shape[2] == 1024 else result

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", off_at_1024)
    sizes = probe.choose_attention(AttentionShape(4, 2, 16, torch.float32), max_keys=700, rows=4)
    assert sizes == TileSizes(rows=4, decode=16, prefill=16, keys=1024)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_tiles_are_found_for_windows_too(dtype):
    shape, windows = AttentionShape(9, 3, 64, dtype), (None, 20, 512)
    windowed = probe.choose_attention(replace(shape, windows=windows), max_keys=2048, rows=4)
    assert windowed == probe.choose_attention(shape, max_keys=2048, rows=4)


def test_a_window_whose_bits_follow_the_padding_fixes_the_length(monkeypatch):
    plain = torch.nn.functional.scaled_dot_product_attention

    def off_behind_a_hidden_block(query, key, value, *, attn_mask, scale):
        result = plain(query, key, value, attn_mask=attn_mask, scale=scale)
        hides_a_block = attn_mask[..., :512].isinf().all() and key.shape[2] > 1024
        return result * (1 + 1e-6) if hides_a_block else result

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", off_behind_a_hidden_block)
    shape = AttentionShape(4, 2, 16, torch.float32)
    assert probe.choose_attention(shape, max_keys=700, rows=4).keys == 512
    assert probe.choose_attention(replace(shape, windows=(None, 20)), max_keys=700, rows=4).keys == 1024
