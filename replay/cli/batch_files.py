"""Which dumps a batch takes, and where it writes their reports.

A folder of dumps may come from anybody: nothing is written through a link in it, and no file is replaced that is not a
report of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from replay import strict_json
from replay.errors import UsageError

SUFFIX = ".pplx"
REPORTS = "reports"
MAX_REPORT_BYTES = 64 << 20
MAX_NAME_BYTES = 255  # what file systems allow


@dataclass(frozen=True, slots=True)
class Place:
    """A dump and its report: ``base`` is the folder that reports go to, ``name`` the report's path below it."""

    dump: Path
    base: Path
    name: Path

    @property
    def report(self) -> Path:
        return self.base / self.name


def places(paths: Sequence[Path], *, recursive: bool, out: Path | None) -> list[Place]:
    """The dumps at ``paths`` (folders and files), sorted within each folder, each once.

    Raises `UsageError` for a path that is not there, a folder without dumps, and a report that would replace a file
    that is not one. Nothing is written yet: see `make_folders`.
    """
    found: dict[str, Place] = {}
    for path in paths:
        folder = path if path.is_dir() else path.parent
        dumps = _dumps_in(path, recursive=recursive) if path.is_dir() else [path]
        if not path.is_dir() and not path.exists():
            dangling = " (it is a link that leads nowhere)" if path.is_symlink() else ""
            raise UsageError(f"{path}: there is no such file or folder{dangling}")
        if not dumps:
            raise UsageError(f"no *{SUFFIX} in {path}", remedy="" if recursive else "Folders below it: --recursive.")
        for dump in dumps:
            name = dump.relative_to(folder)
            name = name.with_name(_fitting(name.stem, ".json"))
            found.setdefault(os.path.abspath(dump), Place(dump, out or folder / REPORTS, name))
    result = list(_apart(found.values()))
    for place in result:
        _check(place)
    return result


def _dumps_in(folder: Path, *, recursive: bool) -> list[Path]:
    if not recursive:
        names = [entry.name for entry in os.scandir(folder) if not _is_folder(entry)]
        return [folder / name for name in sorted(names) if name.endswith(SUFFIX)]
    found: list[Path] = []
    for above, below, names in os.walk(folder):
        below.sort()
        found += [Path(above, name) for name in sorted(names) if name.endswith(SUFFIX)]
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads in a circle is none; opening it says what it is."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _fitting(stem: str, tail: str) -> str:
    """``stem + tail``, with less of the stem where a file's name may not be that long."""
    whole = os.fsencode(stem)
    kept = whole[: MAX_NAME_BYTES - len(tail)]
    return (stem if kept == whole else kept.decode("utf-8", "ignore")) + tail


def _apart(found: Iterable[Place]) -> Iterator[Place]:
    """The same places, with names that differ: dumps of several folders may be called alike."""
    taken: set[Path] = set()
    for place in found:
        if place.report in taken:
            mark = hashlib.sha256(os.fsencode(os.path.abspath(place.dump))).hexdigest()[:8]
            place = Place(place.dump, place.base, place.name.with_name(_fitting(place.name.stem, f"-{mark}.json")))
        taken.add(place.report)
        yield place


def _check(place: Place) -> None:
    """Raises `UsageError` when the report cannot be written without harm."""
    for folder in (place.base if place.base.name == REPORTS else None, *_folders_below(place)):
        if folder is not None and folder.is_symlink():
            raise UsageError(f"{folder} is a link", remedy="Name a folder for the reports: --out FOLDER.")
    if os.path.lexists(place.report) and not _is_ours(place.report):
        raise UsageError(
            f"{place.report} exists and is no report of ours",
            remedy="Move it away, or name another folder: --out FOLDER.",
        )


def _folders_below(place: Place) -> list[Path]:
    return [place.base / above for above in reversed(place.name.parents) if above != Path()]


def _is_ours(path: Path) -> bool:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_REPORT_BYTES:
            return False
        document = strict_json.loads(path.read_bytes())
    except (OSError, strict_json.InvalidJson):
        return False
    marks = isinstance(document, dict) and {"schema_version", "tool_version"} <= document.keys()
    return marks and ("verdict" in document or "error" in document)


def make_folders(found: Sequence[Place]) -> None:
    """Make the folders of the reports (0700) and try to write there, before any dump is replayed for nothing.

    Raises `UsageError` where a report could not be written.
    """
    for folder in dict.fromkeys(folder for place in found for folder in (place.base, *_folders_below(place))):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _part(folder) as (_, file):
                file.write("\n")
        except OSError as error:
            reason = "it is a file, and not a folder" if isinstance(error, FileExistsError) else error.strerror
            raise UsageError(
                f"reports cannot be written to {folder}: {reason}", remedy="Name another folder: --out FOLDER."
            ) from error


def write_report(place: Place, document: Mapping[str, Any]) -> None:
    """Write the report (0600) whole or not at all. Raises as `places` when something came there meanwhile."""
    _check(place)
    with _part(place.report.parent) as (path, file):
        json.dump(document, file, indent=2, allow_nan=False)
        file.write("\n")
        file.close()
        os.replace(path, place.report)


@contextlib.contextmanager
def _part(folder: Path) -> Iterator[tuple[Path, TextIO]]:
    """A new file (0600) that is gone in the end, unless it was moved."""
    part = folder / f".{secrets.token_hex(8)}.part"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            yield part, file
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
