"""The pool of KV blocks, and who holds them."""

from __future__ import annotations

import pytest

from replay.engine.block_pool import BlockPool


def test_a_pool_knows_shared_tables():
    pool = BlockPool(4, free=[3], used=[[0, 1], [0, 2]])
    assert pool.ref_counts == [2, 1, 1, 0]
    pool.release([0, 1])
    assert list(pool.free) == [3, 1]
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([[0, 1]])
