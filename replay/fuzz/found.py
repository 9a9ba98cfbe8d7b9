"""The folder of what was found: for each failure a dump, its report, and a test where it was shrunk.

A failure is on disk before anything else is done with it: first as it was met, later shrunk.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from replay import strict_json
from replay.errors import ReplayError, UsageError
from replay.fuzz.violation import Violation
from replay.minimise.pytest_file import path_of_test
from replay.report import SCHEMA_VERSION, tool_version
from replay.signature import Identity


@dataclass(kw_only=True, slots=True)
class Found:
    """One failure. ``number`` is that of the example which showed it, ``left`` says what shrinking left of it.

    ``settings`` are what its replay has to be given with --set. ``before``: an earlier search had put it into the
    folder. ``note`` says why it is not shrunk, or not yet.
    """

    identity: Identity
    path: Path
    start: Path
    change: str
    number: int
    target: str
    shrunk: bool = False
    before: bool = False
    left: str = ""
    needs: list[str] = field(default_factory=list)
    note: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    report: Mapping[str, Any] | None = None

    @property
    def met(self) -> Path:
        """The dump as it was met. It goes when there is a smaller one."""
        return self.path.with_suffix(".met.pplx")

    @property
    def dump(self) -> Path:
        return self.path if self.shrunk else self.met

    @property
    def test(self) -> Path | None:
        return path_of_test(self.path) if self.shrunk else None

    @property
    def document(self) -> Path:
        return self.path.with_suffix(".json")

    def to_json(self) -> dict[str, Any]:
        return {
            "identity": asdict(self.identity),
            "dump": str(self.dump),
            "test": str(self.test) if self.test is not None else None,
            "report": str(self.document),
            "started_from": str(self.start),
            "change": self.change,
            "example": self.number,
            "target": self.target,
            "shrunk": self.shrunk,
            "before": self.before,
            "left": self.left,
            "needs": self.needs,
            "note": self.note,
            "settings": dict(self.settings),
        }


@dataclass(kw_only=True, slots=True)
class Broken:
    """One broken property. ``evidence`` is a file with the example that showed it."""

    violation: Violation
    evidence: Path
    start: Path
    change: str
    number: int

    def to_json(self) -> dict[str, Any]:
        return {
            **self.violation.to_json(),
            "evidence": str(self.evidence),
            "started_from": str(self.start),
            "change": self.change,
            "example": self.number,
        }


class Folder:
    """Made with the first file that is put there. Files are replaced whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self) -> None:
        """Raises `UsageError` where nothing could be put: better now than when something is found."""
        there = next(one for one in (self.path, *self.path.absolute().parents) if os.path.lexists(one))
        if not there.is_dir():
            raise UsageError(f"--out {self.path}: {there} is no folder", remedy="Choose another folder.")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"--out {self.path}: nothing can be written into {there}", remedy="Choose another folder.")

    @contextlib.contextmanager
    def alone(self, give_up: Callable[[], bool]) -> Iterator[bool]:
        """Keeps other searches that share the folder out while one of them shrinks a failure that both may have met.

        Waits for those that are in it. Gives False where ``give_up`` said to wait no longer.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield _locked(descriptor, give_up)
        finally:
            os.close(descriptor)

    def of(self, identity: Identity) -> Path:
        """Where the dump of a failure belongs."""
        return self.path / f"{identity.kind}-{_key(asdict(identity))}.pplx"

    def before(self, identity: Identity) -> dict[str, Any] | None:
        """What an earlier search has written of a failure, if its dump is there."""
        path = self.of(identity)
        try:
            told = strict_json.loads(path.with_suffix(".json").read_bytes())
            same = told["identity"] == asdict(identity)
            there = path.exists() if told["shrunk"] else path.with_suffix(".met.pplx").exists()
        except (OSError, ReplayError, KeyError, TypeError):
            return None
        return dict(told) if same and there else None

    def put(self, path: Path, data: bytes) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)

    def describe(self, found: Found, *, seed: int) -> None:
        """Write the report of a failure beside its dump."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "tool_version": tool_version(),
            "seed": seed,
            **found.to_json(),
            "replay": found.report,
        }
        self.put(found.document, json.dumps(document, indent=2, allow_nan=False).encode("ascii"))

    def keep(self, violation: Violation, suffix: str, data: bytes) -> Path:
        """Write the evidence of a broken property. Returns where it is."""
        path = self.path / f"broken-{violation.rule}-{_key(violation.identity)}.{suffix}"
        self.put(path, data)
        return path


def _locked(descriptor: int, give_up: Callable[[], bool]) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if give_up():
                return False
            time.sleep(0.1)
        else:
            return True


def _key(document: Any) -> str:
    return hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=4).hexdigest()
