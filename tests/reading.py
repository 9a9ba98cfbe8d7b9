"""Small dumps to be damaged, a file that is written over and read again, and what that takes of memory."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from hypothesis import HealthCheck, Phase, given, settings

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from dumps.strategies.programs import programs
from dumps.strategies.valid import dumps
from tests.small_dump import write_small

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def drawn_dumps(folder: Path, count: int) -> list[bytes]:
    """The small dump with everything a file can have, and ``count`` files of drawn runs and programs, no two alike."""
    found = {write_small(folder / "small.pplx"): None}

    @settings(max_examples=count, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(dumps(), programs())
    def write(made, program):
        for state, sections in (made, (program, [])):
            path = folder / f"{len(found)}.pplx"
            write_dump(path, state, sections)
            found.setdefault(path.read_bytes())
            path.unlink()

    while len(found) <= count:
        write()
    return list(found)[: count + 1]


class Rewritten:
    """One file for thousands of dumps: making a new one for each would take longer than reading it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, data: bytes) -> None:
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))  # last: ext4 takes a file cut to nothing first to the disk, a millisecond

    def read(self, data: bytes, *, salvage: bool = False) -> tuple[pb.RuntimeState, list[bytes]]:
        """Write ``data``, and read everything a reader can be asked for, verified. Raises `DumpError`."""
        self.write(data)
        return self.read_again(salvage=salvage)

    def read_again(self, *, salvage: bool = False) -> tuple[pb.RuntimeState, list[bytes]]:
        with open_dump(self.path, salvage=salvage) as dump:
            if not salvage:
                dump.verify()
            kinds = dict.fromkeys(info.kind for info in dump.sections)
            return dump.state, [dump.read_section(kind) for kind in kinds]

    def __enter__(self) -> Rewritten:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)


class HighWater:
    """Bytes by which this process's resident memory grew at its peak, C libraries included; None where not known."""

    grown: int | None = None

    def __enter__(self) -> HighWater:
        if _RESET.exists():
            _RESET.write_text("5")
            self._before = _resident("VmRSS")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if _RESET.exists():
            self.grown = _resident("VmHWM") - self._before


def _resident(name: str) -> int:
    line = next(line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
