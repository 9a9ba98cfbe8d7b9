"""Sections: bulk payloads of a dump, their headers, and decoding within limits."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import zstandard
from google.protobuf.message import DecodeError

from dumps.errors import CorruptDump, DumpError, LimitExceeded, TornDump
from dumps.limits import MAX_PART_BYTES, Limits
from dumps.schema import state_pb2 as pb
from dumps.schema.layout import ALIGNMENT, MAX_PADDING, PADDING_TAG, SECTION_DATA_TAG, SECTION_TAG
from dumps.schema.wire import LEN, WireField, encode_varint, scan
from dumps.tensors import tensor_bytes

RAW = "raw"
ZSTD = "zstd"

_ZSTD_STEP = 1024 * 1024
_MAX_HEADER_BYTES = 4096
# A high ratio is only worth an error where the result is big: a page of zeros compresses by any factor.
_RATIO_FREE_BYTES = 1024 * 1024
RATIO_FREE_TOTAL = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionInfo:
    """One section part. ``offset`` is its tag, ``end`` the byte after it, ``data_offset`` its payload in the file."""

    kind: str
    part: int
    encoding: str
    raw_size: int
    dtype: str
    shape: tuple[int, ...]
    offset: int
    end: int
    data_offset: int
    data_size: int

    @property
    def aligned(self) -> bool:
        """Whether the payload starts on a 64-byte boundary of the file."""
        return self.data_offset % ALIGNMENT == 0


def read_section_info(data: memoryview, field: WireField, limits: Limits) -> SectionInfo:
    """The header of the section at ``field``. The payload is not touched.

    Raises `CorruptDump` for a header that contradicts itself and `LimitExceeded` for one that asks for too much.
    """
    try:
        return _read_section_info(data, field, limits)
    except TornDump as error:
        # It ran past the section, not past the file.
        raise CorruptDump(f"inside a section: {error.message}", offset=error.offset) from None


def _read_section_info(data: memoryview, field: WireField, limits: Limits) -> SectionInfo:
    data_offset = data_end = header_end = field.end
    for inner in scan(data, field.value, field.end):
        if inner.number == pb.Section.DATA_FIELD_NUMBER:
            if inner.wire_type != LEN or inner.end != field.end:
                raise CorruptDump("the payload of a section is not its last field", offset=inner.tag)
            header_end, data_offset, data_end = inner.tag, inner.value, inner.end
        elif inner.end - field.value > _MAX_HEADER_BYTES:
            raise LimitExceeded(f"a section header of more than {_MAX_HEADER_BYTES} bytes", offset=field.tag)
    header = pb.Section()
    try:
        header.ParseFromString(bytes(data[field.value : header_end]))
    except DecodeError:
        raise CorruptDump("a section header that does not parse", offset=field.tag) from None
    info = SectionInfo(
        kind=header.kind,
        part=header.part,
        encoding=header.encoding,
        raw_size=header.raw_size,
        dtype=header.dtype,
        shape=tuple(header.shape),
        offset=field.tag,
        end=field.end,
        data_offset=data_offset,
        data_size=data_end - data_offset,
    )
    _check_claims(info, limits)
    return info


def _check_claims(info: SectionInfo, limits: Limits) -> None:
    at, part = info.offset, f"part {info.part} of section {info.kind[:40]!r}"
    if any(len(label.encode()) > limits.label_bytes for label in (info.kind, info.encoding, info.dtype)):
        raise LimitExceeded(f"a section label of more than {limits.label_bytes} bytes (label_bytes)", offset=at)
    if not info.kind:
        raise CorruptDump("a section without a kind", offset=at)
    most = min(limits.part_bytes, MAX_PART_BYTES)
    if info.raw_size > most:
        raise LimitExceeded(f"{part} has {info.raw_size} bytes, more than {most} (part_bytes)", offset=at)
    if info.encoding == RAW:
        if info.data_size != info.raw_size:
            raise CorruptDump(f"{part} claims {info.raw_size} bytes and has {info.data_size}", offset=at)
    elif info.encoding == ZSTD:
        if info.raw_size > _RATIO_FREE_BYTES and info.raw_size > limits.compression_ratio * info.data_size:
            raise LimitExceeded(
                f"{part} claims {info.raw_size} bytes from {info.data_size}, more than "
                f"{limits.compression_ratio} times (compression_ratio)",
                offset=at,
            )
    else:
        raise CorruptDump(f"{part} has the unknown encoding {info.encoding[:40]!r}", offset=at)
    if len(info.shape) > limits.tensor_dims:
        raise LimitExceeded(f"{part} has {len(info.shape)} dimensions (tensor_dims)", offset=at)
    if not info.dtype:
        if info.shape:
            raise CorruptDump(f"{part} has a shape and no dtype", offset=at)
        return
    try:
        wanted = tensor_bytes(info.dtype, info.shape)
    except DumpError as error:
        raise CorruptDump(f"{part}: {error.message}", offset=at) from None
    if wanted != info.raw_size:
        raise CorruptDump(
            f"{part}: {info.dtype} {list(info.shape)} takes {wanted} bytes, the section has {info.raw_size}", offset=at
        )


def decode_payload(payload: memoryview, info: SectionInfo, limits: Limits) -> bytes:
    """The raw bytes of a part, exactly ``info.raw_size`` of them; memory grows only with what really comes out.

    Raises `CorruptDump` for a payload that is not zstd or has another size.
    """
    if info.encoding == RAW:
        return bytes(payload)
    raw = io.BytesIO()  # gives its bytes away without a copy, unlike a bytearray
    for step in _decoded(payload, info, limits):
        raw.write(step)
    return raw.getvalue()


def check_payload(payload: memoryview, info: SectionInfo, limits: Limits) -> None:
    """Decode a part and keep nothing of it. Errors as `decode_payload`."""
    if info.encoding != RAW:
        for _ in _decoded(payload, info, limits):
            pass


def _decoded(payload: memoryview, info: SectionInfo, limits: Limits) -> Iterator[bytes]:
    at = info.data_offset
    decompressor = zstandard.ZstdDecompressor(max_window_size=limits.zstd_window_bytes)
    size = 0
    try:
        # Across frames: anything after the frame is then an error or makes the size wrong.
        with decompressor.stream_reader(payload, read_across_frames=True) as reader:
            while step := reader.read(_ZSTD_STEP):
                size += len(step)
                if size > info.raw_size:
                    raise CorruptDump(f"the payload is longer than its {info.raw_size} raw bytes", offset=at)
                yield step
    except zstandard.ZstdError as error:
        raise CorruptDump(f"zstd cannot read the payload: {error}", offset=at) from None
    if size != info.raw_size:
        raise CorruptDump(f"the payload has {size} raw bytes instead of {info.raw_size}", offset=at)


def encode_section(
    *, at: int, kind: str, part: int, encoding: str, raw_size: int, dtype: str, shape: tuple[int, ...], data_size: int
) -> tuple[bytes, bytes]:
    """What stands before a payload, to be written at ``at``: a padding field (or nothing); tag, length and header.

    The payload of ``data_size`` bytes that follows starts on a 64-byte boundary.
    """
    header = pb.Section(kind=kind, part=part, encoding=encoding, raw_size=raw_size, dtype=dtype, shape=shape)
    inner = header.SerializeToString(deterministic=True)
    if data_size:
        inner += SECTION_DATA_TAG + encode_varint(data_size)
    front = SECTION_TAG + encode_varint(len(inner) + data_size) + inner
    return _padding(-(at + len(front)) % ALIGNMENT), front


def _padding(size: int) -> bytes:
    """A padding field of ``size`` bytes, tag and length included; it cannot have one byte, so that becomes 65."""
    if size == 0:
        return b""
    zeros = size - 2 if size >= 2 else size - 2 + ALIGNMENT
    return PADDING_TAG + encode_varint(zeros) + bytes(zeros)


def check_padding(data: memoryview, field: WireField) -> None:
    """Raises `CorruptDump` for padding that could hide something: not zeros, or more than is ever needed."""
    size = field.end - field.value
    if size > MAX_PADDING or any(data[field.value : field.end]):
        raise CorruptDump(f"padding must be at most {MAX_PADDING} zeros", offset=field.tag)
