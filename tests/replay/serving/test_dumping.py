"""Dumps on a disk that is full."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

from dumps.ledger import weakest
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.validate import validate
from replay.engine.request import SamplingParams
from tests.recordings import dump_now, record

ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """How large a file may become: the closest to a full disk that needs no disk of its own.

    Only around what is tested: the output of the tests may go to a file, too.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_for_kv_contents_the_rest_is_written(tiny_model, tmp_path):
    recording = record(tiny_model, tmp_path, [[1, 2, 3]], sampling=ENDLESS, steps=200, record_kv="live")
    whole = dump_now(recording)
    with files_up_to(whole.stat().st_size // 2):
        smaller = dump_now(recording)
    with open_dump(smaller) as dump:
        dump.verify()
        assert validate(dump.state) == []
        assert dump.sections == ()
        assert weakest(dump.state, "kv.contents_blocks").grade == pb.ABSENT
        assert len(dump.state.steps) == 200


def test_without_any_room_nothing_is_left_behind(tiny_model, tmp_path):
    recording = record(tiny_model, tmp_path, [[1, 2, 3]], sampling=ENDLESS, steps=20, record_kv="live")
    with files_up_to(100):
        written = recording.session.dump("demand")
    assert written is None
    assert list(tmp_path.glob("*.pplx")) == []
