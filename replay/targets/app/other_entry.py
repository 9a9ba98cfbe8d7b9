"""Whether a replay called what was recorded, or something else that its user named."""

from __future__ import annotations

from typing import Any

from dumps.record.message_text import module_name
from dumps.schema import state_pb2 as pb
from dumps.text import printable


def other_entry(program: pb.Program, named: str, function: Any) -> str:
    """What to say where ``named``, which is ``function``, is not the recorded entry; empty where it is, and where that
    is not known. Of a server only its requests are recorded: what makes its application has many names."""
    recorded = program.entry
    if not recorded or program.kind != "block":
        return ""
    own = f"{module_name(getattr(function, '__module__', '') or '')}:{getattr(function, '__qualname__', '')}"
    if recorded in (named, own):
        return ""
    return f"another entry was recorded: {printable(recorded, 200)}; this replay called {printable(named, 200)}"
