"""Writes a sealed dump of what could be salvaged from a damaged or unfinished one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dumps import ledger
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump
from dumps.schema.writer import DumpWriter


def reseal(dump: Dump, path: Path) -> None:
    """Write what ``dump`` holds to the new file ``path``, sealed.

    Of a torn dump the ledger of the new one says what is missing: sections are marked absent, and so is what comes
    after the last good seal of a head that was sealed in pieces. Errors as `DumpWriter` and `Dump.read_section`.
    """
    state = pb.RuntimeState()
    state.CopyFrom(dump.state)
    if dump.torn is not None:
        # It is another dump than the whole one, which may still turn up in the same folder.
        state.manifest.id = hashlib.sha256(f"{state.manifest.id} {dump.torn.offset}".encode()).hexdigest()[:16]
        ledger.record(
            state,
            "sections",
            pb.ABSENT,
            f"salvaged up to byte {dump.torn.offset} of {dump.size}: {dump.torn.reason}. "
            "Sections after it are lost, and the last one here may be incomplete.",
        )
    with DumpWriter(path) as writer:
        writer.head(state)
        for kind in dict.fromkeys(info.kind for info in dump.sections):
            parts = dump.parts(kind)
            shape = parts[0].shape and (sum(info.shape[0] for info in parts), *parts[0].shape[1:])
            writer.section(kind, dump.read_section(kind), dtype=parts[0].dtype, shape=shape)
