"""Taps live as long as what they follow, and nothing else is mistaken for it."""

from __future__ import annotations

import gc

from dumps.record.recorder import RecordLevel
from dumps.record.seams.http_tap import HttpTap
from dumps.record.seams.log import WorldLog
from dumps.record.seams.taps import Taps, new_tap


class Stream:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def make_tap() -> HttpTap:
    return HttpTap(WorldLog(level=RecordLevel.FULL), client="test", scheme="http", host="h", port=80)


def test_by_identity():
    taps, first, second = Taps(), Stream(), Stream()
    tap = make_tap()
    taps.put(first, tap)
    assert taps.get(first) is tap
    assert taps.get(second) is None, "equal, and another one"
    assert taps.drop(first) is tap
    assert taps.get(first) is None


def test_for_as_long_as_it_lives():
    taps = Taps()
    for _ in range(100):
        taps.put(Stream(), make_tap())
    gc.collect()
    assert taps._found == {}


def test_what_cannot_be_followed():
    taps, tap = Taps(), make_tap()
    slots = object()
    taps.put(slots, tap)
    assert taps.get(slots) is None
    assert tap.stopped
    assert taps.get(None) is None


def test_a_library_whose_objects_are_not_as_expected():
    log = WorldLog(level=RecordLevel.FULL)
    tap = new_tap(log, "test", lambda: object().url)  # type: ignore[attr-defined]
    tap.connecting()
    tap.sent(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (tap.stopped, log.exchanges, log.lost) == (True, [], {"unreadable_connections": 1})
