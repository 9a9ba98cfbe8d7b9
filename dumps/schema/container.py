"""One pass over the top-level fields of a file: where content, sections and seals stand, and whether that is legal.

Nothing here is verified against a checksum; what a damaged file claims can only lead to a `DumpError`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dumps.errors import BadMagic, CorruptDump, DumpError, LimitExceeded, TornDump, UnsupportedVersion
from dumps.limits import Limits
from dumps.schema.layout import (
    CONTAINER,
    MAGIC,
    PADDING,
    PREFIX,
    SEAL_TAG,
    SEALS,
    SECTIONS,
    STATE_FIELDS,
    TRAILER,
    TRAILER_BYTES,
    VERSION,
)
from dumps.schema.seals import SealInfo, encode_directory, encode_trailer, read_seal
from dumps.schema.sections import RATIO_FREE_TOTAL, SectionInfo, check_padding, read_section_info
from dumps.schema.wire import FIXED64, LEN, WireField, scan

_RING = b"PPLXRING"  # the recorder's magic begins like ours
_LOOKS_LIKE = (
    (b"\x1f\x8b", "gzip", "Unpack it with gunzip first."),
    (b"\x28\xb5\x2f\xfd", "zstd", "Unpack it with `zstd -d` first."),
    (b"PK\x03\x04", "a zip archive or a torch checkpoint", "Never torch.load it; ask for a .pplx dump."),
    (b"\x93NUMPY", "a numpy array", ""),
    (b"\x7fELF", "an ELF file, perhaps a core dump", "A process's core is not a dump; see `pplx-state recover`."),
    (_RING, "a flight recorder's ring", "Run `pplx-state recover FILE` to make a dump from it."),
    (b"{", "JSON", ""),
)
_PICKLE_PROTOCOLS = (2, 3, 4, 5)
_MAX_SEAL_BYTES = 1024 * 1024


@dataclass(slots=True)
class Container:
    """What one pass over a file found, up to ``problem`` if there is one."""

    content: list[WireField] = field(default_factory=list)
    seals: list[SealInfo] = field(default_factory=list)
    sections: list[SectionInfo] = field(default_factory=list)
    has_trailer: bool = False
    problem: DumpError | None = None

    @property
    def head_seals(self) -> list[SealInfo]:
        """Seals that hold content: all of those before the first section."""
        if not self.sections:
            return self.seals
        first = self.sections[0].offset
        return [seal for seal in self.seals if seal.tag < first]


def check_prefix(data: memoryview) -> None:
    """Raises `BadMagic` or `UnsupportedVersion` unless ``data`` starts as a dump of this version does."""
    front = bytes(data[: len(PREFIX)])
    if not front:
        raise TornDump("the file is empty", offset=0, remedy="Nothing was written; look for another dump of this run.")
    if not front.startswith(MAGIC) or bytes(data[: len(_RING)]) == _RING:
        if MAGIC.startswith(front):
            raise TornDump("the file ends inside its magic", offset=0, remedy="Look for another dump of this run.")
        raise _bad_magic(bytes(data[:16]))
    if len(front) < len(PREFIX):
        raise TornDump("the file ends inside its version", offset=4, remedy="Look for another dump of this run.")
    version = int.from_bytes(front[4:], "big")
    if version != VERSION:
        raise UnsupportedVersion(f"dump version {version:#06x}; this release reads {VERSION:#06x}", offset=4)


def _bad_magic(front: bytes) -> BadMagic:
    if front[:1] == b"\x80" and front[1:2] and front[1] in _PICKLE_PROTOCOLS:
        return BadMagic(
            "not a dump: this is a Python pickle",
            offset=0,
            remedy="Never load it: unpickling runs code that the file brings. Ask for a .pplx dump instead.",
        )
    for magic, name, remedy in _LOOKS_LIKE:
        if front.startswith(magic):
            return BadMagic(f"not a dump: this looks like {name}", offset=0, remedy=remedy)
    return BadMagic(f"not a dump: it starts with {front[:4].hex(' ')} instead of {MAGIC.hex(' ')} (PPLX)", offset=0)


def read_container(data: memoryview, limits: Limits) -> Container:
    """Scan the fields of ``data`` (a whole file). The first problem ends the scan and is returned in the result."""
    found = Container()
    try:
        check_prefix(data)
        _Pass(data, limits, found).run()
    except DumpError as error:
        found.problem = error
    if isinstance(found.problem, TornDump) and _claims_to_be_complete(data):
        # A file that was cut does not end in a trailer. This one was whole once, and a length in it is wrong.
        torn = found.problem
        found.problem = CorruptDump(f"{torn.message}, although the file ends in a trailer", offset=torn.offset)
    return found


def _claims_to_be_complete(data: memoryview) -> bool:
    tail = bytes(data[-TRAILER_BYTES:])
    last_seal = int.from_bytes(tail[1:], "little")
    if len(tail) < TRAILER_BYTES or tail != encode_trailer(last_seal):
        return False
    return last_seal < len(data) - TRAILER_BYTES and data[last_seal] == SEAL_TAG[0]


class _Pass:
    def __init__(self, data: memoryview, limits: Limits, found: Container) -> None:
        self.data = data
        self.limits = limits
        self.found = found
        self.seen: set[int] = set()
        self.raw_bytes = 0
        self.stored_bytes = 0
        self.first_parts: dict[str, SectionInfo] = {}
        self.next_part: dict[str, int] = {}

    def run(self) -> None:
        for wire in scan(self.data, len(PREFIX)):
            if self.found.has_trailer:
                after = len(self.data) - wire.tag
                raise CorruptDump(f"{after} bytes after the trailer", offset=wire.tag)
            if wire.number not in CONTAINER:
                self.content(wire)
            elif wire.wire_type != (FIXED64 if wire.number == TRAILER else LEN):
                raise CorruptDump(f"field {wire.number} has the wrong wire type {wire.wire_type}", offset=wire.tag)
            elif wire.number == SEALS:
                self.seal(wire)
            elif wire.number == TRAILER:
                self.trailer(wire)
            elif wire.number == PADDING:
                self.end_of_head(wire)
                check_padding(self.data, wire)
            else:
                self.end_of_head(wire)
                self.section(wire)
        if not self.found.has_trailer:
            raise TornDump("the file has no final seal", offset=len(self.data))

    def content(self, wire: WireField) -> None:
        if SECTIONS in self.seen:
            raise CorruptDump(f"content field {wire.number} after the first section", offset=wire.tag)
        known = STATE_FIELDS.get(wire.number)
        if known is not None and not known.is_repeated:
            if wire.number in self.seen:
                raise CorruptDump(f"field {known.name} stands twice and is not a list", offset=wire.tag)
            self.seen.add(wire.number)
        if len(self.found.content) >= self.limits.head_fields:
            raise LimitExceeded(f"more than {self.limits.head_fields} fields (head_fields)", offset=wire.tag)
        if wire.end > self.limits.head_bytes:
            raise LimitExceeded(f"a head of more than {self.limits.head_bytes} bytes (head_bytes)", offset=wire.tag)
        self.found.content.append(wire)

    def end_of_head(self, wire: WireField) -> None:
        """Content must be sealed before bulk data follows, or reading it would mean hashing that data."""
        if SECTIONS in self.seen:
            return
        self.seen.add(SECTIONS)
        content, seals = self.found.content, self.found.seals
        if not seals or (content and content[-1].end > seals[-1].tag):
            raise CorruptDump("content that is not sealed before the first section", offset=wire.tag)

    def seal(self, wire: WireField) -> None:
        seals = self.found.seals
        if wire.end - wire.tag > _MAX_SEAL_BYTES:
            raise LimitExceeded(f"a seal of more than {_MAX_SEAL_BYTES} bytes", offset=wire.tag)
        if len(seals) > 2 * self.limits.sections:
            raise LimitExceeded(f"more than {len(seals)} seals (sections)", offset=wire.tag)
        seals.append(read_seal(self.data, wire, seals[-1].tag if seals else 0))

    def section(self, wire: WireField) -> None:
        if len(self.found.sections) >= self.limits.sections:
            raise LimitExceeded(f"more than {self.limits.sections} section parts (sections)", offset=wire.tag)
        info = read_section_info(self.data, wire, self.limits)
        self.raw_bytes += info.raw_size
        self.stored_bytes += info.data_size
        # Each small part alone is free of the ratio, four thousand of them are not.
        if self.raw_bytes > RATIO_FREE_TOTAL + self.limits.compression_ratio * self.stored_bytes:
            ratio = self.limits.compression_ratio
            raise LimitExceeded(
                f"sections of {self.raw_bytes} bytes from {self.stored_bytes}, more than {ratio} times "
                "(compression_ratio)",
                offset=wire.tag,
            )
        if self.raw_bytes > self.limits.total_raw_bytes:
            most = self.limits.total_raw_bytes
            raise LimitExceeded(f"sections of more than {most} bytes in total (total_raw_bytes)", offset=wire.tag)
        first = self.first_parts.setdefault(info.kind, info)
        if info.part != self.next_part.get(info.kind, 0):
            raise CorruptDump(f"part {info.part} of section {info.kind!r} is out of order", offset=wire.tag)
        if info.dtype != first.dtype or info.shape[1:] != first.shape[1:]:
            raise CorruptDump(f"part {info.part} of section {info.kind!r} does not fit its first part", offset=wire.tag)
        self.next_part[info.kind] = info.part + 1
        self.found.sections.append(info)

    def trailer(self, wire: WireField) -> None:
        seals = self.found.seals
        if not seals or seals[-1].end != wire.tag:
            raise CorruptDump("the trailer does not follow a seal", offset=wire.tag)
        if bytes(self.data[wire.tag : wire.end]) != encode_trailer(seals[-1].tag):
            raise CorruptDump("the trailer does not point at the last seal", offset=wire.tag)
        entries = [(info.kind, info.part, info.offset, info.end - info.offset) for info in self.found.sections]
        if seals[-1].directory != encode_directory(entries) or any(seal.directory for seal in seals[:-1]):
            raise CorruptDump("the directory does not list the sections of the file", offset=seals[-1].tag)
        self.found.has_trailer = True
