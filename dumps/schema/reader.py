"""Opens a dump: scans its fields over an mmap, verifies what it hands out, and touches only what is asked for.

What is verified when. `open_dump` checks the seals of the head and the final one; a section's seal is checked when that
section is read; `Dump.verify` checks all of them.
"""

from __future__ import annotations

import bisect
import hashlib
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from dumps.errors import CorruptDump, DumpError, InvalidState, TornDump
from dumps.limits import Limits
from dumps.schema import state_pb2 as pb
from dumps.schema.bounds import check_bounds
from dumps.schema.container import Container, read_container
from dumps.schema.layout import PREFIX
from dumps.schema.mapped import MappedFile
from dumps.schema.seals import SealInfo, check_seal
from dumps.schema.sections import RAW, SectionInfo, check_payload, decode_payload
from dumps.tensors import as_tensor

_HASH_STEP = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Torn:
    """How far a salvaged file could be verified. ``offset``: the first byte that no good seal covers."""

    offset: int
    reason: str


def open_dump(path: Path, *, salvage: bool = False, limits: Limits = Limits()) -> Dump:  # noqa: B008 - frozen
    """Open the dump at ``path``, verify its head and parse it.

    With ``salvage`` a damaged or unfinished file yields what its good seals hold: `Dump.torn` then says where and why
    that ends, and ``sections`` lists only verified ones. Without a single good seal over the head there is nothing to
    yield, and the error is raised all the same.

    Raises `DumpError` or one of its subclasses, never anything else, for whatever is at ``path``.
    """
    try:
        file = MappedFile(path, limits)
        try:
            return Dump(path, file, salvage=salvage, limits=limits)
        except BaseException:
            file.close()
            raise
    except DumpError as error:
        error.remedy = error.remedy.replace("FILE", str(path))
        if salvage and isinstance(error, TornDump | CorruptDump):
            error.remedy = "No seal in it holds, so nothing can be recovered: copy the file again from its source."
        raise


class Dump:
    """An open dump. Use it as a context manager: it holds a mapping of the file.

    ``state`` is the content of the head, an ordinary message: changing it changes nothing on disk. ``sections`` are in
    file order. ``torn`` is None for a whole file. Not thread-safe.
    """

    def __init__(self, path: Path, file: MappedFile, *, salvage: bool, limits: Limits) -> None:
        """Use `open_dump`."""
        self.path = path
        self.size = file.size
        self._file = file
        self._limits = limits
        container = read_container(file.view, limits)
        self.seals = tuple(container.seals)
        self._checked: set[int] = set()
        if salvage:
            self.torn = self._check_all_salvaging(container)
            self.sections = self._salvaged_sections(container)
        else:
            if container.problem is not None:
                raise container.problem
            for seal in {*container.head_seals, self.seals[-1]}:
                self._check(seal)
            self.torn = None
            self.sections = tuple(container.sections)
        self.state = self._parse_head(container)

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the whole file."""
        self._file.check_size()
        digest = hashlib.sha256()
        for at in range(0, self.size, _HASH_STEP):
            digest.update(self._file.view[at : at + _HASH_STEP])
        return digest.hexdigest()

    def parts(self, kind: str) -> tuple[SectionInfo, ...]:
        """The parts of a section in order. Raises `DumpError` when the dump has none of this kind."""
        parts = tuple(info for info in self.sections if info.kind == kind)
        if not parts:
            have = ", ".join(dict.fromkeys(info.kind for info in self.sections)) or "none"
            raise DumpError(f"no section {kind!r}; sections here: {have}", remedy="Record with a level that keeps it.")
        return parts

    def read_section(self, kind: str) -> bytes:
        """All parts of a section, verified, decoded and joined."""
        first, *others = self.parts(kind)
        if not others:
            return self._read_part(first)
        joined = io.BytesIO()  # joining a list of parts would hold all of it twice
        for info in (first, *others):
            joined.write(self._read_part(info))
        return joined.getvalue()

    def tensor(self, kind: str) -> npt.NDArray[np.generic]:
        """A section as a read-only array; parts are joined along the first dimension. dtypes as in `as_tensor`."""
        parts = self.parts(kind)
        first = parts[0]
        if not first.dtype:
            raise DumpError(f"section {kind!r} is not a tensor", remedy="Read it with `Dump.read_section`.")
        shape = first.shape
        if len(parts) > 1:
            if not shape:
                raise CorruptDump(f"section {kind!r}: a tensor without dimensions in parts", offset=first.offset)
            shape = (sum(info.shape[0] for info in parts), *shape[1:])
        return as_tensor(self.read_section(kind), first.dtype, shape)

    def tensor_part(self, info: SectionInfo) -> npt.NDArray[np.generic]:
        """One part of a tensor section, verified, as a read-only array; a raw part is a view of the mapped file.

        The view keeps the mapping: drop it before the dump is closed, and copy what must last. Different parts may be
        read by several threads at once.
        """
        payload = self._payload(info)
        data = payload if info.encoding == RAW else decode_payload(payload, info, self._limits)
        return as_tensor(data, info.dtype, info.shape)

    def verify(self) -> None:
        """Check every seal of the file, the unread sections included. Raises `CorruptDump` for the first bad one."""
        for seal in self.seals:
            self._check(seal)

    def check_sections(self) -> None:
        """Verify and decode every section part, one at a time, and keep nothing. Errors as `read_section`."""
        for info in self.sections:
            check_payload(self._payload(info), info, self._limits)

    def close(self) -> None:
        """Release the mapping. Bytes and arrays handed out stay valid; they are copies."""
        self._file.close()

    def __enter__(self) -> Dump:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _covering(self, info: SectionInfo) -> SealInfo:
        """The seal that holds a section; one that is never checked when the file ended before it came."""
        index = bisect.bisect_left(self.seals, info.end, key=lambda seal: seal.tag)
        return self.seals[index] if index < len(self.seals) else SealInfo(info.offset, self.size, self.size, b"", b"")

    def _check(self, seal: SealInfo) -> None:
        if seal.tag not in self._checked:
            self._file.check_size()
            check_seal(self._file.view, seal)
            self._checked.add(seal.tag)

    def _check_all_salvaging(self, container: Container) -> Torn | None:
        good_until, reason = 0, container.problem
        unbroken = True
        for seal in container.seals:
            try:
                self._check(seal)
            except CorruptDump as error:
                # The first bad place is the one to report, whatever ended the scan further on.
                reason = error if unbroken else reason
                unbroken = False
            good_until = seal.end if unbroken else good_until
        if not good_until:
            raise reason or TornDump("the file has no seal", offset=self.size)
        if reason is None:
            return None
        return Torn(good_until, str(reason))

    def _salvaged_sections(self, container: Container) -> tuple[SectionInfo, ...]:
        """Verified parts, without those after a gap: joined, they would pass for a shorter section."""
        parts: dict[str, list[SectionInfo]] = {}
        for info in container.sections:
            of_kind = parts.setdefault(info.kind, [])
            if self._covering(info).tag in self._checked and len(of_kind) == info.part:
                of_kind.append(info)
        return tuple(sorted((info for of_kind in parts.values() for info in of_kind), key=lambda info: info.offset))

    def _parse_head(self, container: Container) -> pb.RuntimeState:
        """Parse the content that checked seals hold, as far as they hold it without a gap."""
        pieces, at = [], len(PREFIX)
        for seal in container.head_seals:
            if seal.tag not in self._checked:
                break
            pieces.append(bytes(self._file.view[at : seal.tag]))
            at = seal.end
        check_bounds(self._file.view, (field for field in container.content if field.end <= at), self._limits)
        state = pb.RuntimeState()
        try:
            state.ParseFromString(b"".join(pieces))
        except DecodeError as error:
            raise CorruptDump(f"the head is not a RuntimeState: {error}", offset=len(PREFIX)) from None
        if not state.HasField("manifest"):
            raise InvalidState("the dump has no manifest", remedy="It was not written by pplx-replay; ask its writer.")
        return state

    def _payload(self, info: SectionInfo) -> memoryview:
        self._check(self._covering(info))
        return self._file.view[info.data_offset : info.data_offset + info.data_size]

    def _read_part(self, info: SectionInfo) -> bytes:
        return decode_payload(self._payload(info), info, self._limits)
