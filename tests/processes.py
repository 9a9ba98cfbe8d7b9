"""What tests ask the system about a process."""

from __future__ import annotations

from pathlib import Path


def is_gone(pid: int) -> bool:
    """Whether no such process runs. A zombie that waits for its new parent counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
