"""Schedulers that have followed a record up to a step."""

from __future__ import annotations

from replay.engine.recorded import RecordedScheduler
from replay.targets.drive import Deadline, Drive, RecordedTokens, recorded_stops
from replay.targets.rebuild import Rebuilt


def led_to(rebuilt: Rebuilt, step: int) -> RecordedScheduler:
    """A scheduler that has taken the recorded steps before ``step``."""
    drive = Drive(
        rebuilt,
        executor=RecordedTokens(rebuilt.outputs),
        stop_check=recorded_stops(rebuilt.outputs),
        deadline=Deadline(None),
        emit=lambda _: None,
        bytes_per_block=rebuilt.bytes_per_block,
    )
    drive.run_to(step)
    return drive.scheduler
