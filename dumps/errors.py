"""The error tree of dumps. Whatever is wrong with a file, its reader raises one of these and nothing else."""

from __future__ import annotations


class DumpError(Exception):
    """Root of everything that `dumps` raises about a dump.

    ``offset`` is the byte of the file at which the problem was seen, None when it has no single place. ``remedy`` is
    one sentence on what to do next.
    """

    remedy: str = "Check that the path is right and that the file was copied whole."

    def __init__(self, message: str, *, offset: int | None = None, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        if remedy:
            self.remedy = remedy

    def __str__(self) -> str:
        return self.message if self.offset is None else f"{self.message} (at byte {self.offset})"


class BadMagic(DumpError):
    """The file does not start with "PPLX". Usually the wrong file, or a dump that was compressed for transport."""

    remedy = "Pass a dump written by pplx-replay; a compressed copy must be unpacked first."


class UnsupportedVersion(DumpError):
    """The magic is right and the version is not 0x0009. Usually a dump of a newer release."""

    remedy = "Open it with the pplx-replay release that wrote it."


class TornDump(DumpError):
    """The file ends before its final seal. Usually its writer was killed, or a copy stopped half-way."""

    remedy = "Run `pplx-state recover FILE -o NEW.pplx` to write a sealed dump of what is still readable."


class CorruptDump(DumpError):
    """Bytes are not what was sealed, or not a dump at all. Usually a bad disk, a bad transfer, or an edited file."""

    remedy = "Copy the file again from its source and compare checksums; `--salvage` shows what can still be verified."


class LimitExceeded(DumpError):
    """The dump asks for more than `Limits` allows. Usually hostile; rarely a dump of a very large deployment."""

    remedy = "If you trust the source of this dump, raise the named limit (dumps.limits.Limits)."


class InvalidState(DumpError):
    """The bytes are intact and the state in them contradicts itself. Usually a defect of the program that wrote it."""

    remedy = "Run `pplx-state verify DUMP` for the list of contradictions."


class UnknownPath(DumpError):
    """A path that names no field or element of a dump. Usually a typo; the remedy names the nearest ones."""
