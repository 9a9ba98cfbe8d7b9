from __future__ import annotations

import os

from replay.serving.leftovers import recover_leftovers
from tests.flight import make_config, make_recorder


def test_of_the_rings_that_are_done_with_only_the_newest_is_kept(tmp_path):
    for number in range(3):
        path = tmp_path / f"flight-1-{number}.ring"
        make_recorder(path, make_config()).close(clean=True)
        os.utime(path, (number, number))
    live = make_recorder(tmp_path / "flight-2-0.ring", make_config())
    assert recover_leftovers(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flight-1-2.ring.recovered", "flight-2-0.ring"]
    live.close(clean=True)
