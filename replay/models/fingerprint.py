"""What identifies weights: their tensors' names, dtypes, shapes and bytes, however they are cut into files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from replay.errors import ModelUnavailable
from replay.models.cache import fingerprints_folder, make_private
from replay.models.folder import weight_files
from replay.models.safetensors_header import read_header

OnBytes = Callable[[int, int], None]

BUFFER_BYTES = 4 * 2**20
MAX_TOKENIZER_BYTES = 256 * 2**20
NO_PROGRESS: OnBytes = lambda done, total: None  # noqa: E731


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What is known of a folder of weights. ``size`` is the bytes of all tensors; ``dtype`` is that of most of them."""

    folder: Path
    fingerprint: str
    dtype: str
    size: int
    num_tensors: int


def weights_fingerprint(folder: Path, *, on_bytes: OnBytes = NO_PROGRESS) -> str:
    """The fingerprint alone; see `examine`."""
    return examine(folder, on_bytes=on_bytes).fingerprint


def tokenizer_fingerprint(folder: Path) -> str:
    """sha256 of ``tokenizer.json`` in hex. Raises `ModelUnavailable` where there is none."""
    path = folder / "tokenizer.json"
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise ModelUnavailable(f"{path} is larger than {MAX_TOKENIZER_BYTES} bytes")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelUnavailable(
            f"{path}: {error.strerror}", remedy="Pass a model folder that holds its tokenizer.json."
        ) from error


def examine(folder: Path, *, on_bytes: OnBytes = NO_PROGRESS, fresh: bool = False) -> Weights:
    """Fingerprint a folder: sha256 over the sorted list of (name, dtype, shape, sha256 of the bytes) of all tensors.

    A result is kept in our cache and used again while no file has changed (size, mtime, ctime and inode); ``fresh``
    hashes in any case. ``on_bytes`` gets bytes done and bytes in total. Raises `ModelUnavailable` for missing or
    damaged files, `UnsupportedModel` for a dtype we do not know.
    """
    files = weight_files(folder)
    stamp = _stamp(files)
    if not fresh and (known := _remembered(folder, stamp)) is not None:
        return known
    found = _hash(folder, files, on_bytes)
    if _stamp(files) == stamp:
        _remember(found, stamp)
    return found


def known(folder: Path) -> Weights | None:
    """What an earlier `examine` found, if nothing changed since. Reads no weights."""
    return _remembered(folder, _stamp(weight_files(folder)))


def _hash(folder: Path, files: list[Path], on_bytes: OnBytes) -> Weights:
    headers = [(path, read_header(path)) for path in files]
    total = sum(tensor.end - tensor.start for _, tensors in headers for tensor in tensors)
    lines: dict[str, bytes] = {}
    bytes_of: dict[str, int] = {}
    done = 0
    buffer = memoryview(bytearray(BUFFER_BYTES))
    for path, tensors in headers:
        with path.open("rb", buffering=0) as file:
            for tensor in tensors:
                if tensor.name in lines:
                    raise ModelUnavailable(
                        f"{folder}: tensor {tensor.name!r} stands in two files", remedy="Remove the second copy."
                    )
                digest = hashlib.sha256()
                file.seek(tensor.start)
                left = tensor.end - tensor.start
                while left:
                    count = file.readinto(buffer[: min(left, BUFFER_BYTES)])
                    if not count:
                        raise ModelUnavailable(f"{path} became shorter while it was read", remedy="Try again.")
                    digest.update(buffer[:count])
                    left -= count
                    done += count
                    on_bytes(done, total)
                lines[tensor.name] = _line(tensor.name, tensor.dtype, tensor.shape, digest.hexdigest())
                bytes_of[tensor.dtype] = bytes_of.get(tensor.dtype, 0) + tensor.end - tensor.start
    overall = hashlib.sha256(b"".join(lines[name] for name in sorted(lines)))
    return Weights(
        folder=folder,
        fingerprint=overall.hexdigest(),
        dtype=max(bytes_of, key=lambda dtype: bytes_of[dtype], default=""),
        size=total,
        num_tensors=len(lines),
    )


def _line(name: str, dtype: str, shape: tuple[int, ...], digest: str) -> bytes:
    return json.dumps([name, dtype, list(shape), digest], separators=(",", ":")).encode() + b"\n"


def _stamp(files: list[Path]) -> list[list[str | int]]:
    # ctime is in it because `cp -p` and `touch -d` can set an mtime back, but nothing can set a ctime.
    stamp: list[list[str | int]] = []
    for path in files:
        try:
            status = path.stat()
        except OSError as error:
            raise ModelUnavailable(f"{path}: {error.strerror}", remedy="Fetch the weights again.") from error
        stamp.append([path.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino])
    return stamp


def _note_of(folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return fingerprints_folder() / f"{name}.json"


def _remembered(folder: Path, stamp: list[list[str | int]]) -> Weights | None:
    try:
        note = json.loads(_note_of(folder).read_bytes())
        if note["stamp"] != stamp:
            return None
        return Weights(
            folder=folder,
            fingerprint=str(note["fingerprint"]),
            dtype=str(note["dtype"]),
            size=int(note["size"]),
            num_tensors=int(note["num_tensors"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(found: Weights, stamp: list[list[str | int]]) -> None:
    note = {
        "folder": str(found.folder.resolve()),
        "stamp": stamp,
        "fingerprint": found.fingerprint,
        "dtype": found.dtype,
        "size": found.size,
        "num_tensors": found.num_tensors,
    }
    path = _note_of(found.folder)
    try:
        make_private(path.parent)
        path.write_text(json.dumps(note), encoding="utf-8")
    except (OSError, ValueError):
        # The cache only saves time: a read-only home folder must not stop a replay.
        return
