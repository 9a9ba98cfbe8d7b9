from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from dumps.record.recover import recover
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


def test_a_ring_that_was_recovered_by_hand_is_set_aside_and_no_error(tmp_path, caplog):
    ring = tmp_path / "flight-1-1.ring"
    code = "import os, sys\nfrom pathlib import Path\nfrom tests.flight import make_config, make_recorder\n"
    code += "recorder = make_recorder(Path(sys.argv[1]), make_config())\nos._exit(0)"
    subprocess.run([sys.executable, "-c", code, str(ring)], check=True, cwd=Path(__file__).parents[3])
    by_hand = recover(ring, tmp_path)
    with caplog.at_level(logging.INFO, logger="pplx.server"):
        assert recover_leftovers(tmp_path) == []
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert sorted(tmp_path.iterdir()) == sorted([by_hand, tmp_path / "flight-1-1.ring.recovered"])
