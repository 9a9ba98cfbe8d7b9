"""Rings of servers that died in this dump folder: each becomes a dump when the next server starts."""

from __future__ import annotations

import logging
from pathlib import Path

from dumps.errors import DumpError
from dumps.record.recover import RecoveredBefore, RingImage, read_ring, recover_image

log = logging.getLogger("pplx.server")

RECOVERED = ".recovered"


def recover_leftovers(folder: Path) -> list[Path]:
    """Recover every ring whose writer is dead and set it aside. Returns the dumps. An unreadable ring is logged.

    Of the rings set aside only the newest is kept: a server that dies again and again must not fill the disk.
    """
    written: list[Path] = []
    for ring in sorted(folder.glob("flight-*.ring")):
        try:
            image = read_ring(ring)
            if image.alive:
                continue
            if not image.closed:
                _recover(image, folder, written)
            ring.rename(ring.with_name(ring.name + RECOVERED))
        except (DumpError, OSError) as error:
            log.error("nothing recovered from %s: %s", ring, error)
    for old in sorted(folder.glob(f"flight-*.ring{RECOVERED}"), key=lambda path: path.stat().st_mtime_ns)[:-1]:
        old.unlink(missing_ok=True)
    return written


def _recover(image: RingImage, folder: Path, written: list[Path]) -> None:
    try:
        found = recover_image(image, folder)
    except RecoveredBefore as error:  # by hand, with pplx-state recover
        log.info("%s was recovered before: %s", image.path, error)
        return
    written.append(found.path)
    log.warning("dump written: %s, reason: %s (recovered)", found.path, found.state.manifest.reason)
