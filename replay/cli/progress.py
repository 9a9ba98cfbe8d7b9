"""Progress on stderr: a bar on a terminal; otherwise plain lines, at the ends of a stage and now and then within."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress

from replay.cli.console import note, stderr


class Progress(Protocol):
    """Called as often as the work likes."""

    def __call__(self, stage: str, done: int = 0, total: int | None = None) -> None:
        """``stage`` is a few words; a new stage ends the one before. ``total`` None: its length is not known.

        The stage `STOPPED` ends it without a word of success.
        """
        ...


STOPPED = ""
LINE_EVERY_S = 5.0


@contextmanager
def progress(*, in_bytes: bool = False) -> Iterator[Progress]:
    """Show the progress of the work inside. ``in_bytes`` shows counts as sizes."""
    console = stderr()
    yield from _bars(in_bytes=in_bytes) if console.is_terminal else _lines(in_bytes=in_bytes)


def _bars(*, in_bytes: bool) -> Iterator[Progress]:
    counts = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), counts, TimeElapsedColumn())
    with RichProgress(*columns, console=stderr()) as bars:
        current: tuple[str, TaskID] | None = None

        def update(stage: str, done: int = 0, total: int | None = None) -> None:
            nonlocal current
            if stage == STOPPED:
                current = None
                return
            if current is None or current[0] != stage:
                _complete(bars, current)
                current = stage, bars.add_task(stage, total=total)
            bars.update(current[1], completed=done, total=total)

        yield update
        _complete(bars, current)


def _complete(bars: RichProgress, current: tuple[str, TaskID] | None) -> None:
    if current is None:
        return
    task = next(task for task in bars.tasks if task.id == current[1])
    total = task.total if task.total is not None else max(task.completed, 1)
    bars.update(current[1], total=total, completed=total)


def _lines(*, in_bytes: bool) -> Iterator[Progress]:
    current: tuple[str, float] | None = None
    said = 0.0

    def update(stage: str, done: int = 0, total: int | None = None) -> None:
        nonlocal current, said
        if stage == STOPPED:
            current = None
            return
        now = time.monotonic()
        if current is None or current[0] != stage:
            end()
            note(f"{stage} ...")
            current, said = (stage, now), now
        elif now - said >= LINE_EVERY_S:
            note(f"{stage}: {_count(done, total, in_bytes=in_bytes)}")
            said = now

    def end() -> None:
        if current is not None:
            note(f"{current[0]}: done in {time.monotonic() - current[1]:.1f} s")

    yield update
    end()


def _count(done: int, total: int | None, *, in_bytes: bool) -> str:
    numbers = [done] if total is None else [done, total]
    return " of ".join(f"{number / 1e6:,.1f} MB" if in_bytes else f"{number:,}" for number in numbers)
