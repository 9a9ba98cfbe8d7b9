"""Seals: checksums that stand in the file between the fields they hold.

A single flipped bit in a protobuf message mostly parses without a word, and a message cut at a field boundary is a
valid message. So every byte of a dump is either hashed by a seal or equal to the one encoding it can have: a seal
hashes from the tag of the seal before it (0 for the first) to its own tag, then its directory. That leaves the last
seal's own bytes and the trailer, and both are compared with their canonical encoding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from dumps.errors import CorruptDump
from dumps.schema import state_pb2 as pb
from dumps.schema.layout import SEAL_TAG, TRAILER_TAG
from dumps.schema.wire import WireField, encode_varint

_HASH_STEP = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SealInfo:
    """A seal as it stands in the file: it holds the bytes from ``start`` to ``tag``; ``end`` is after its last byte."""

    start: int
    tag: int
    end: int
    directory: bytes
    sha256: bytes


def encode_seal(start: int, directory: bytes, sha256: bytes) -> bytes:
    """The bytes of a seal, tag and length included. The only bytes a reader takes for these values."""
    body = pb.Seal(start=start, directory=directory, sha256=sha256).SerializeToString(deterministic=True)
    return SEAL_TAG + encode_varint(len(body)) + body


def encode_trailer(last_seal: int) -> bytes:
    """The last nine bytes of a file."""
    return TRAILER_TAG + last_seal.to_bytes(8, "little")


class RunningSeal:
    """The hash of a file being written. Feed it every byte, its own seals included."""

    def __init__(self) -> None:
        self._start = 0
        self._hash = hashlib.sha256()

    def update(self, data: bytes | memoryview) -> None:
        self._hash.update(data)

    def seal(self, offset: int, directory: bytes = b"") -> bytes:
        """The seal to be written at ``offset``, over everything since the seal before. Starts the next hash."""
        self._hash.update(directory)
        seal = encode_seal(self._start, directory, self._hash.digest())
        self._start = offset
        self._hash = hashlib.sha256()
        return seal


def seal_hash(data: memoryview, start: int, end: int, directory: bytes) -> bytes:
    """sha256 over ``data[start:end]`` and then ``directory``."""
    digest = hashlib.sha256()
    for at in range(start, end, _HASH_STEP):
        digest.update(data[at : min(at + _HASH_STEP, end)])
    digest.update(directory)
    return digest.digest()


def read_seal(data: memoryview, field: WireField, expected_start: int) -> SealInfo:
    """Decode the seal at ``field`` without checking its hash.

    Raises `CorruptDump` when it does not start at ``expected_start`` or is not in its canonical encoding.
    """
    raw = bytes(data[field.tag : field.end])
    seal = pb.Seal()
    try:
        seal.ParseFromString(raw[field.value - field.tag :])
    except DecodeError:
        raise CorruptDump("a seal that does not parse", offset=field.tag) from None
    if raw != encode_seal(seal.start, seal.directory, seal.sha256) or len(seal.sha256) != 32:
        raise CorruptDump("a seal that is not in its canonical encoding", offset=field.tag)
    if seal.start != expected_start:
        raise CorruptDump(f"a seal that starts at {seal.start} instead of {expected_start}", offset=field.tag)
    return SealInfo(seal.start, field.tag, field.end, seal.directory, seal.sha256)


def check_seal(data: memoryview, seal: SealInfo) -> None:
    """Raises `CorruptDump` unless the bytes that ``seal`` holds are those that were sealed."""
    if seal_hash(data, seal.start, seal.tag, seal.directory) != seal.sha256:
        raise CorruptDump(
            f"bytes {seal.start} to {seal.tag} are not what was sealed: their sha256 differs", offset=seal.start
        )


def encode_directory(entries: Sequence[tuple[str, int, int, int]]) -> bytes:
    """Sections as (kind, part, offset, length), in file order, as the directory of the last seal."""
    directory = pb.Directory(
        entries=[pb.DirectoryEntry(kind=kind, part=part, offset=at, length=n) for kind, part, at, n in entries]
    )
    return directory.SerializeToString(deterministic=True)
