"""Dump files made by hand, for contents that a writer would refuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dumps.schema import state_pb2 as pb
from dumps.schema.layout import PREFIX
from dumps.schema.reader import Dump, open_dump
from dumps.schema.seals import RunningSeal, encode_directory, encode_trailer
from dumps.schema.wire import LEN, encode_tag, encode_varint


def seal_up(*pieces: bytes, entries: Sequence[tuple[str, int, int, int]] = ()) -> bytes:
    """A file with a good seal after each piece."""
    seal, out = RunningSeal(), b""
    for piece in (PREFIX + pieces[0], *pieces[1:]):
        seal.update(piece)
        out += piece
        made = seal.seal(len(out))
        seal.update(made)
        out += made
    last = len(out)
    return out + seal.seal(last, encode_directory(entries)) + encode_trailer(last)


def manifest_field(**fields: Any) -> bytes:
    """A head with nothing but a manifest."""
    return pb.RuntimeState(manifest=pb.Manifest(id="1", **fields)).SerializeToString()


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return encode_tag(number, LEN) + encode_varint(len(payload)) + payload


def open_bytes(folder: Path, data: bytes | bytearray, **options: Any) -> Dump:
    """Open a file with these bytes."""
    path = folder / "some.pplx"
    path.write_bytes(data)
    return open_dump(path, **options)
