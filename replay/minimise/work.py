"""The folder beside an output in which a minimisation keeps what it has found, so that another process can go on.

A search is a function of its start and of what its trials showed. All trials are kept here, so going on after a kill
means searching again from the beginning with answers that are there already: the end is the same as without the kill.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from replay import strict_json
from replay.errors import ReplayError, UsageError
from replay.minimise.order import cost
from replay.scenario.scenario import Scenario

HEADER, TRIALS, BEST, WRITTEN = "of.json", "trials.jsonl", "best.json", "written.json"
_DUMPS = frozenset({"trial.pplx", "recorded.pplx", "result.pplx", "failed.pplx"})
_NAMES = frozenset({HEADER, TRIALS, BEST, WRITTEN})
_OURS = _NAMES | _DUMPS | {f"{name}.part" for name in _NAMES | _DUMPS}


def work_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.work")


class Work:
    """A folder that is ours alone while it is open. ``resumed`` says that it held trials of the same search."""

    def __init__(self, folder: Path, header: Mapping[str, Any], *, resume: bool | None = None) -> None:
        """Open ``folder`` for the search that ``header`` describes (JSON types).

        ``resume`` True: go on with what is there. False: begin afresh. None: go on if it is of the same search.

        Raises `UsageError` when it is not one of ours, when another process has it, and when there is nothing to go
        on with that there must be.
        """
        self.folder = folder
        self._header = dict(header)
        before = _read(folder / HEADER)
        same = before == json.loads(json.dumps(self._header)) and resume is not False
        if resume and not same:
            why = "is of another dump or other options" if before is not None else "does not exist"
            raise UsageError(f"nothing to go on with: {folder} {why}", remedy="Leave out --resume to begin afresh.")
        # A kill may have left any part of a checkpoint, and nothing else.
        if (os.path.lexists(folder) and not folder.is_dir()) or not _OURS.issuperset(_names(folder)):
            raise UsageError(
                f"{folder} exists and is no checkpoint of ours", remedy="Move it away, or choose another -o."
            )
        self._file = self._lock()
        if not same:  # only now: before, another process may have been at work in it
            self._file.truncate(0)
            for name in _OURS - {TRIALS}:
                (folder / name).unlink(missing_ok=True)
            _write(folder / HEADER, self._header)
        self.trials = dict(_lines(folder / TRIALS))
        self.resumed = bool(self.trials)
        self._scenario: Scenario | None = None
        with contextlib.suppress(UsageError):
            if (kept := _read(folder / BEST)) is not None:
                self._scenario = Scenario.from_json(kept)

    def _lock(self) -> IO[str]:
        while True:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            try:
                descriptor = os.open(self.folder / TRIALS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            except FileNotFoundError:  # the process that had it has just taken it away
                continue
            file = os.fdopen(descriptor, "a", encoding="ascii")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise UsageError(f"another process works in {self.folder}", remedy="Wait for it, or end it.") from None
            if _is_at(self.folder / TRIALS, descriptor):
                return file
            file.close()

    @property
    def best(self) -> Scenario | None:
        """The smallest scenario that was confirmed, in this process or before."""
        return self._scenario

    def improve(self, scenario: Scenario) -> None:
        """Keep it as the best one, if it is smaller."""
        if self._scenario is None or cost(scenario) < cost(self._scenario):
            _write(self.folder / BEST, scenario.to_json())
            self._scenario = scenario

    def tried(self, key: str, told: Mapping[str, Any]) -> None:
        """Keep what a trial told, under the digest of what was tried."""
        self.trials[key] = dict(told)
        self._file.write(json.dumps([key, told], allow_nan=False) + "\n")
        self._file.flush()

    @property
    def written(self) -> str:
        """sha256 of the output that was written when the search was cut short; "" where none was."""
        kept = _read(self.folder / WRITTEN)
        return str(kept.get("sha256", "")) if isinstance(kept, dict) else ""

    @written.setter
    def written(self, sha256: str) -> None:
        _write(self.folder / WRITTEN, {"sha256": sha256})

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """Take it away and close it: the search is over. In this order, or the next process may have it by then."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Whole lines of the cache. What a kill cut short is left out."""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            kept = data[: data.rfind(b"\n") + 1]
            os.truncate(path, len(kept))
            data = kept
        for line in data.splitlines():
            with contextlib.suppress(ReplayError, ValueError, TypeError):
                key, told = strict_json.loads(line)
                yield key, dict(told)


def _read(path: Path) -> Any:
    """A JSON document, None where there is none."""
    try:
        return strict_json.loads(path.read_bytes())
    except (OSError, ReplayError):
        return None


def _write(path: Path, document: Any) -> None:
    """Whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        json.dump(document, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
