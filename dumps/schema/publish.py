"""A file that appears under its name only when it is whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dumps.errors import DumpError


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """A path in the folder of ``target`` to write to; what is there at the end becomes ``target``.

    Whoever makes a dump from another file can do it again, so half of one is worth nothing and would stand in the way.
    After an error, a full disk included, nothing is left; after a kill, a hidden file that blocks nobody.

    Raises:
        FileExistsError: ``target`` is there, also when it came while the other file was written. It stays as it is.
        DumpError: an OSError on the way, such as a full disk.
    """
    part = target.with_name(f".pplx-{secrets.token_hex(8)}.part")
    try:
        yield part
        _rename_new(part, target)
    except FileExistsError:
        raise
    except OSError as error:
        remedy = "Make room, or choose another place with -o."
        raise DumpError(f"cannot write {target}: {error.strerror or error}", remedy=remedy) from error
    finally:
        part.unlink(missing_ok=True)


def _rename_new(part: Path, target: Path) -> None:
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links; the check before it leaves a small window
        if target.exists():
            raise FileExistsError(f"{target} exists already") from None
        part.rename(target)
