"""Quicker forms of attention are taken where they have the bits of the known ones, and only there."""

from __future__ import annotations

import pytest
import torch

from replay.engine.attention import TileSizes
from replay.engine.probe import AttentionShape, choose_attention
from replay.engine.probe_attention import _Problem, quicker_attention

DTYPES = [torch.float32, torch.bfloat16]
KNOWN = TileSizes(rows=4, decode=2, prefill=16, keys=512)
PLAIN = torch.nn.functional.scaled_dot_product_attention


def one_more(result):
    """The next larger number in one place: the least that can differ."""
    result = result.clone()
    result[0, 0, 0, 0] = torch.nextafter(result[0, 0, 0, 0], torch.tensor(float("inf"), dtype=result.dtype))
    return result


def off_where(monkeypatch, differs):
    """From now on attention is a little off in calls for which ``differs(query rows, keys)`` holds."""

    def attention(query, key, value, **options):
        result = PLAIN(query, key, value, **options)
        return one_more(result) if differs(query.shape[2], key.shape[2]) else result

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)


def shape_of(dtype=torch.float32, **changes):
    return AttentionShape(**{"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": dtype, **changes})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 2, 16), (32, 1, 16)])
def test_what_is_found_has_the_bits_of_what_was_known(dtype, heads, kv_heads, dim):
    shape = AttentionShape(heads, kv_heads, dim, dtype, (None, 100))
    known = choose_attention(shape, rows=4, max_keys=2048)
    sizes = quicker_attention(shape, known)
    # Places and lengths that the probe has not tried.
    for first, window in ((33, None), (333, 100), (900, None)):
        problem = _Problem(shape, first=first, count=190, window=window).expect(known)
        for size in (sizes.decode, 19, 95, 190):
            assert problem.agrees(sizes, size, 190), (first, size, sizes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_data_show_a_sum_in_another_order(dtype):
    """The values alone, summed one by one and in two halves, differ in most places after rounding."""
    problem = _Problem(shape_of(dtype), first=480, count=32)
    rows = problem.value.float().numpy()
    # With numpy, whose running sums are float32 throughout: torch's are float64.
    whole, first, second = (torch.from_numpy(part.cumsum(0)[-1]) for part in (rows, rows[:250], rows[250:]))
    differs = whole.to(dtype) != (first + second).to(dtype)
    assert differs.float().mean() > 0.5


def test_calls_of_many_queries_that_differ_are_not_made(monkeypatch):
    assert quicker_attention(shape_of(), KNOWN).bulk == 256
    off_where(monkeypatch, lambda rows, keys: rows >= 192)
    assert quicker_attention(shape_of(), KNOWN).bulk == 128
    off_where(monkeypatch, lambda rows, keys: rows > 64)
    assert quicker_attention(shape_of(), KNOWN).bulk == 0


def test_a_tail_at_which_the_kernel_differs_is_not_used(monkeypatch):
    assert {64, 192} <= set(quicker_attention(shape_of(), KNOWN).tails)
    off_where(monkeypatch, lambda rows, keys: keys % 512 == 192)
    found = quicker_attention(shape_of(), KNOWN).tails
    assert 64 in found
    assert 192 not in found


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tail_that_changes_the_order_of_the_sum_is_seen(dtype):
    """torch's own kernel sums over 256 keys in another order than over the first 256 of 512."""
    problem = _Problem(shape_of(dtype), first=224, count=32).expect(KNOWN)
    cut = TileSizes(rows=4, decode=0, prefill=16, keys=512, tails=(256,))
    differs = not problem.agrees(cut, 16)
    assert differs == (256 not in quicker_attention(shape_of(dtype), KNOWN).tails)


def test_a_decode_tile_that_differs_grows(monkeypatch):
    assert quicker_attention(shape_of(), KNOWN).decode == 2
    off_where(monkeypatch, lambda rows, keys: rows == 4)  # two heads share a key
    assert quicker_attention(shape_of(), KNOWN).decode == 4


def test_keys_of_a_fixed_length_have_no_tails():
    known = TileSizes(rows=4, decode=16, prefill=16, keys=1024)
    assert quicker_attention(shape_of(), known).tails == ()
