"""How full a file system was: `os.statvfs`, which `shutil.disk_usage` asks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dumps.record.seams.file_calls import SPACE_FIELDS
from replay.runtime.file_model import FileModel
from replay.runtime.syscalls import fields_of, raise_error


def space(model: FileModel, name: str, shown: Any) -> os.statvfs_result:
    """As it was recorded, whatever the replay has written since. Raises `OSError` and `UnrecordedFile`."""
    entry = model.script.history(name).query("statvfs")

    def play() -> os.statvfs_result:
        if entry is None:
            raise model.unknown("statvfs", name)
        model.pass_time(entry.call)
        raise_error(entry.call, shown)
        return _result(fields_of(entry.call))

    result = model.ask("statvfs", (shown,), entry, play)
    return _result(result) if isinstance(result, dict) else result  # a handler's


def _result(fields: Mapping[str, int]) -> os.statvfs_result:
    """Fields by name; those that are missing are 0."""
    *sequence, file_system = (fields.get(name, 0) for name in SPACE_FIELDS)
    return os.statvfs_result(sequence, {SPACE_FIELDS[-1]: file_system})
