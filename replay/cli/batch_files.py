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
from typing import Any

from replay import strict_json
from replay.errors import UsageError

SUFFIX = ".pplx"
REPORTS = "reports"
MAX_REPORT_BYTES = 64 << 20


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
    that is not one.
    """
    found: dict[str, Place] = {}
    for path in paths:
        folder = path if path.is_dir() else path.parent
        dumps = _dumps_in(path, recursive=recursive) if path.is_dir() else [path]
        if not path.is_dir() and not path.exists():
            raise UsageError(f"{path}: there is no such file or folder")
        if not dumps:
            raise UsageError(f"no *{SUFFIX} in {path}", remedy="" if recursive else "Folders below it: --recursive.")
        for dump in dumps:
            name = dump.relative_to(folder).with_suffix(".json")
            found.setdefault(os.path.abspath(dump), Place(dump, out or folder / REPORTS, name))
    result = list(_apart(found.values()))
    for place in result:
        _check(place)
    return result


def _dumps_in(folder: Path, *, recursive: bool) -> list[Path]:
    if not recursive:
        names = [entry.name for entry in os.scandir(folder) if not entry.is_dir()]
        return [folder / name for name in sorted(names) if name.endswith(SUFFIX)]
    found: list[Path] = []
    for above, below, names in os.walk(folder):
        below.sort()
        found += [Path(above, name) for name in sorted(names) if name.endswith(SUFFIX)]
    return found


def _apart(found: Iterable[Place]) -> Iterator[Place]:
    """The same places, with names that differ: dumps of several folders may be called alike."""
    taken: set[Path] = set()
    for place in found:
        if place.report in taken:
            mark = hashlib.sha256(os.fsencode(os.path.abspath(place.dump))).hexdigest()[:8]
            place = Place(place.dump, place.base, place.name.with_name(f"{place.name.stem}-{mark}.json"))
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


def write_report(place: Place, document: Mapping[str, Any]) -> None:
    """Write the report (0600) whole or not at all. Raises as `places` when something came there meanwhile."""
    for folder in (place.base, *_folders_below(place)):
        folder.mkdir(mode=0o700, parents=folder is place.base, exist_ok=True)
    _check(place)
    part = place.report.with_name(f".{place.report.name[:100]}.{secrets.token_hex(6)}.part")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            json.dump(document, file, indent=2, allow_nan=False)
            file.write("\n")
        os.replace(part, place.report)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
