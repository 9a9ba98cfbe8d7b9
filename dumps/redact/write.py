"""Writes a redacted dump."""

from __future__ import annotations

from pathlib import Path

from dumps.redact.redact import Redacted, redact
from dumps.schema.reader import Dump
from dumps.schema.writer import DumpWriter


def redact_dump(dump: Dump, *, prompt: bool = False, key: bytes | None = None) -> Redacted:
    """`redact` of an open dump with its sections."""
    sizes: dict[str, int] = {}
    for info in dump.sections:
        sizes[info.kind] = sizes.get(info.kind, 0) + info.raw_size
    return redact(dump.state, prompt=prompt, sections=sizes.items(), key=key)


def write_redacted(dump: Dump, redacted: Redacted, path: Path) -> None:
    """Write ``redacted``, which was made of ``dump``, to the new file ``path`` with mode 0600.

    Errors as `DumpWriter` and `Dump.read_section`.
    """
    with DumpWriter(path) as writer:
        writer.head(redacted.state)
        for kind in dict.fromkeys(info.kind for info in dump.sections if info.kind in redacted.sections):
            parts = dump.parts(kind)
            shape = parts[0].shape and (sum(info.shape[0] for info in parts), *parts[0].shape[1:])
            writer.section(kind, dump.read_section(kind), dtype=parts[0].dtype, shape=shape)
