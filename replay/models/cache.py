"""Our folder of converted weights: one folder a model, there whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from replay.errors import ModelUnavailable, Refused
from replay.models.folder import is_model_folder

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


def cache_root() -> Path:
    """``$PPLX_CACHE``, else ``pplx-replay`` in ``$XDG_CACHE_HOME`` or in ``~/.cache``."""
    if named := os.environ.get("PPLX_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pplx-replay"


def models_folder() -> Path:
    return cache_root() / "models"


def fingerprints_folder() -> Path:
    return cache_root() / "fingerprints"


def make_private(folder: Path) -> None:
    """Make ``folder``, inside our cache, and the cache's root where they do not exist, for this user alone."""
    if folder.is_dir():
        return  # a replay may not make folders above it, and to try would count as an attempt
    cache_root().parent.mkdir(parents=True, exist_ok=True)
    cache_root().mkdir(exist_ok=True, mode=0o700)
    folder.mkdir(exist_ok=True, mode=0o700)


def cached(name: str) -> Path | None:
    """The folder of a cached model, None where there is none of that name. Any text is safe as a name."""
    if not _NAME.fullmatch(name):
        return None
    folder = models_folder() / name
    return folder if is_model_folder(folder) else None


def all_cached() -> list[tuple[str, Path]]:
    """Names and folders of the cached models, sorted by name."""
    try:
        names = sorted(path.name for path in models_folder().iterdir())
    except OSError:
        return []
    return [(name, folder) for name in names if (folder := cached(name)) is not None]


def install(
    name: str,
    build: Callable[[Path], None],
    *,
    replace: bool = False,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Have ``build`` fill a new folder and put it in the cache under ``name``; return the folder.

    One process builds a name at a time; another waits (``on_wait`` is called once) and then takes what the first one
    made. ``build`` works in a folder that no reader looks into, and a rename makes it visible: an interrupt at any
    moment leaves either no model or a whole one. Raises `ModelUnavailable` where the cache cannot be written, and
    `Refused` in a replay that would have to write it.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name for a cached model: {name!r}")
    if not replace and (there := cached(name)) is not None:
        return there
    try:
        make_private(models_folder())
        with _locked(models_folder() / f".{name}.lock", on_wait):
            if not replace and (there := cached(name)) is not None:
                return there
            _sweep(name)
            return _build_and_rename(name, build)
    except Refused:
        raise
    except OSError as error:
        raise ModelUnavailable(
            f"cannot write to the cache {cache_root()}: {error.strerror or error}",
            remedy="Set PPLX_CACHE to a folder that you can write to, with room for the model.",
        ) from error


def _build_and_rename(name: str, build: Callable[[Path], None]) -> Path:
    target = models_folder() / name
    work = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=models_folder()))
    try:
        fresh = work / "new"
        fresh.mkdir(mode=0o700)
        build(fresh)
        if target.exists():
            target.rename(work / "old")
        fresh.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _sweep(name: str) -> None:
    """Remove what killed builds of this name left. Only under the lock: nobody else is building it."""
    for path in models_folder().glob(f".{name}.part-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    # flock: the kernel drops it with its process, so a killed pull never blocks the next one.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
