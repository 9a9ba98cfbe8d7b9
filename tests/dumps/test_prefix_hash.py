"""A block's hash stands for every token up to its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dumps.prefix_hash import block_hash, chain_of


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20), st.integers(1, 5))
def test_a_hash_stands_for_every_token_up_to_its_block(tokens, size):
    hashes = chain_of(tokens, size)
    assert len(hashes) == len(tokens) // size
    assert len(set(hashes)) == len(hashes)
    for place in range(len(hashes) * size):
        other = [token ^ 1 if at == place else token for at, token in enumerate(tokens)]
        same = [ours == theirs for ours, theirs in zip(hashes, chain_of(other, size), strict=True)]
        assert same == [True] * (place // size) + [False] * (len(hashes) - place // size)


def test_a_hash_is_the_same_everywhere():
    assert block_hash(b"", [1, 2, -1]).hex() == "67348348c2e1789da508f7854c02ca4e"
    assert block_hash(block_hash(b"", [1, 2, -1]), [70000]).hex() == "195c4c0053dfb137f0dd546ffb2e4156"
