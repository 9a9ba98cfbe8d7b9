"""The dumps a server knows: the files of one folder, by id, and uploads while they are replayed.

Clients say ids, never paths. An id is the dump's own (16 hex digits in its manifest), or, for a file that cannot be
opened or repeats an id, one made from its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.errors import BudgetSpent
from replay.isolate.limits import Limits
from replay.isolate.result import from_exception
from replay.isolate.supervisor import supervise
from replay.server import describe
from replay.server.problems import problem

SUFFIX = ".pplx"
MAX_FILES = 1000
MAX_WORKERS = 8  # for one list: a folder of files that each end a worker must not hold a client for ever
DESCRIBE_TIMEOUT_S = 30.0
DESCRIBE_MEMORY = 4 << 30

_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class FileKey:
    """A file as it was when it was described. Another size or time is another file."""

    name: str
    inode: int
    size: int
    mtime_ns: int


class DumpStore:
    """Lists and finds dumps below ``root``. Reads it only; subfolders, links and other suffixes are not looked at."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()  # the worker that reads them stands in a folder of its own
        self._described: dict[FileKey, dict[str, Any]] = {}
        self._lock = asyncio.Lock()

    async def entries(self) -> tuple[list[dict[str, Any]], bool]:
        """What is there now, newest first, and whether more than MAX_FILES were found.

        An entry has ``id, file, size, created_ns, reason, active_model, record_level, failure, error``.
        """
        async with self._lock:
            keys, truncated = self._scan()
            await self._describe([key for key in keys if key not in self._described])
            entries = list(self._with_ids(keys))
            # Time can run out because the machine is busy: such a file is looked at again the next time.
            self._described = {key: self._described[key] for key in keys if not _ran_out(self._described[key])}
        return entries, truncated

    async def find(self, dump_id: str) -> Path:
        """The file with this id. Raises Problem: 400 when it is no id, 404 when there is none."""
        if not _ID.fullmatch(dump_id):
            raise problem(400, "BadId", "a dump id is 16 lower-case hex digits", remedy="GET /debug/replay lists them")
        for entry in (await self.entries())[0]:
            if entry["id"] == dump_id:
                return self._root / str(entry["file"])
        raise problem(404, "UnknownDump", f"no dump {dump_id} here", remedy="GET /debug/replay lists them")

    def _scan(self) -> tuple[list[FileKey], bool]:
        """Raises Problem 503 when the folder cannot be read: it may have been on a disk that is gone by now."""
        keys = []
        try:
            listing = os.scandir(self._root)
        except OSError as error:
            raise problem(
                503,
                "NoFolder",
                f"the dumps folder cannot be read: {error.strerror}",
                remedy="bring it back; uploads work",
            ) from error
        with listing as found:
            for entry in found:
                # A file may go away between the two calls.
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(SUFFIX) and stat.S_ISREG(status.st_mode):
                        keys.append(FileKey(entry.name, status.st_ino, status.st_size, status.st_mtime_ns))
        keys.sort(key=lambda key: (-key.mtime_ns, key.name))
        return keys[:MAX_FILES], len(keys) > MAX_FILES

    async def _describe(self, keys: list[FileKey]) -> None:
        """Describe files in a worker. One that ends the worker is noted as such, and the rest go to a new one."""
        for _ in range(MAX_WORKERS):
            if not keys:
                return
            result = await supervise(
                {"paths": [str(self._root / key.name) for key in keys]},
                job_function=describe.JOB_FUNCTION,
                limits=Limits(load_timeout_s=DESCRIBE_TIMEOUT_S, memory_bytes=DESCRIBE_MEMORY),
            )
            if result.report is not None:
                self._described.update(zip(keys, result.report["dumps"], strict=True))
                return
            assert result.error is not None
            culprit = result.progress["done"] if result.progress else 0
            self._described[keys[culprit]] = describe.unreadable(result.error.as_json())
            keys = keys[:culprit] + keys[culprit + 1 :]
        spent = BudgetSpent("too many files here end the process that opens them", remedy="ask again for the rest")
        error = from_exception(spent).as_json()
        self._described.update((key, describe.unreadable(error)) for key in keys)

    def _with_ids(self, keys: list[FileKey]) -> Iterator[dict[str, Any]]:
        taken: set[str] = set()
        for key in keys:
            facts = self._described[key]
            own = facts["id"]
            usable = isinstance(own, str) and _ID.fullmatch(own) is not None and own not in taken
            dump_id = own if usable else hashlib.sha256(os.fsencode(key.name)).hexdigest()[:16]
            taken.add(dump_id)
            yield {**facts, "id": dump_id, "file": key.name, "size": key.size}


def _ran_out(facts: dict[str, Any]) -> bool:
    return facts["error"] is not None and facts["error"]["class"] == BudgetSpent.__name__


@contextlib.asynccontextmanager
async def kept_upload(folder: Path, chunks: AsyncIterator[bytes], *, max_bytes: int) -> AsyncIterator[Path]:
    """Write an upload to a new file (0600) in ``folder`` and delete it afterwards. Raises Problem 413 when too big."""
    path = folder / f"{secrets.token_hex(8)}{SUFFIX}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            written = 0
            async for chunk in chunks:
                written += len(chunk)
                if written > max_bytes:
                    raise too_large(max_bytes)
                file.write(chunk)
        yield path
    finally:
        path.unlink(missing_ok=True)


def too_large(max_bytes: int) -> Exception:
    return problem(
        413,
        "TooLarge",
        f"an upload has at most {max_bytes} bytes here",
        remedy="start the server with a higher --max-upload, or put the file into its --dumps folder",
    )
