"""Makes a dump of what a dead process left behind: its flight recorder's ring."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dumps.errors import DumpError
from dumps.record.image import RingImage, read_ring
from dumps.record.state import state_from_ring
from dumps.schema import state_pb2 as pb
from dumps.schema.publish import published
from dumps.schema.writer import write_dump

__all__ = [
    "RecoveredBefore",
    "RingImage",
    "WriterAlive",
    "read_ring",
    "recover",
    "recover_image",
    "recovered_file",
    "state_from_ring",
]


class WriterAlive(DumpError):
    """The process that writes the ring still runs. Usually the ring of a healthy server in the same folder."""

    remedy = "Wait until it has ended, or pass --force to make a dump of what it has recorded so far."


class RecoveredBefore(DumpError):
    """A dump with the id that this ring gives is there already. Usually the ring was recovered before."""

    remedy = "Open that dump, or name another file with -o."


@dataclass(frozen=True, slots=True)
class Recovered:
    """A dump that was written, and what is in it."""

    path: Path
    state: pb.RuntimeState


def recover(path: Path, out: Path, force: bool = False) -> Path:
    """Write a dump of the ring at ``path`` and return the dump's path; the ring stays as it is.

    ``out`` is a folder, in which the dump gets its id for a name, or the path of the dump, which must not exist. The id
    follows from the ring's content: a second recovery into the same folder is refused, too.

    Raises:
        WriterAlive: the writer runs and ``force`` is False.
        DumpError: the ring cannot be read, the dump exists already, or it cannot be written. No half of it is left.
    """
    return recover_image(read_ring(path), out, force=force).path


def recover_image(image: RingImage, out: Path, *, force: bool = False) -> Recovered:
    """As `recover`, for a ring that was read already."""
    if image.alive and not force:
        raise WriterAlive(f"{image.path}: process {image.header.writer.pid} still writes it")
    state = state_from_ring(image)
    target = out / f"{state.manifest.id}.pplx" if out.is_dir() else out
    with recovered_file(target) as part:
        write_dump(part, state)
    return Recovered(target, state)


@contextmanager
def recovered_file(target: Path) -> Iterator[Path]:
    """As `published`. Raises RecoveredBefore where ``target`` is there, before anything is written if it can be."""
    if os.path.lexists(target):
        raise RecoveredBefore(f"{target} exists already")
    try:
        with published(target) as part:
            yield part
    except FileExistsError:
        raise RecoveredBefore(f"{target} exists already") from None
