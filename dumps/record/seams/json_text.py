"""Values of a program as JSON text for the dump: always valid JSON, bounded, with secrets replaced.

What JSON cannot hold stands there as ``{"$repr": "..."}``, and a value beyond the limit as ``{"$cut": "...", "size":
characters}``. A replay can tell both from a value that it could give back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dumps.record.secrets import scrub_body, scrub_text

MAX_TEXT = 256 * 1024
"""Characters of one value."""

MAX_REPR = 2000

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # differs from run to run, and says nothing

_MARKS = frozenset({"$repr", "$cut"})


def to_json(value: Any, *, limit: int = MAX_TEXT) -> str:
    """``value`` as JSON of about ``limit`` characters at most. Never raises an `Exception`."""
    try:
        text = json.dumps(value, default=_stand_in, ensure_ascii=True)
    except Exception:  # circular, too deep, keys that are no strings, ...: none of them may reach the program
        text = json.dumps(_repr(value))
    try:
        text = _without_secrets(text)
    except Exception:  # better nothing than a secret
        text = json.dumps({"$repr": "<left out: it could not be searched for secrets>"})
    if len(text) <= limit:
        return text
    return json.dumps({"$cut": text[:limit], "size": len(text)})


def _without_secrets(text: str) -> str:
    scrubbed = scrub_body(text.encode(), content_type="application/json")
    return json.dumps({"$repr": "<left out: it holds a secret>"}) if scrubbed is None else scrubbed.decode()


def is_whole(value: Any) -> bool:
    """Whether JSON that `to_json` made holds the value itself, with nothing cut and nothing as its `repr`."""
    if isinstance(value, dict):
        return not (_MARKS & value.keys()) and all(is_whole(one) for one in value.values())
    return not isinstance(value, list) or all(is_whole(one) for one in value)


def _stand_in(value: object) -> dict[Any, Any]:
    return dict(value) if isinstance(value, Mapping) else _repr(value)


def _repr(value: object) -> dict[str, str]:
    try:
        text = repr(value)
    except Exception:  # a program's own __repr__
        text = f"<{type(value).__qualname__}: its repr could not be made>"
    return {"$repr": scrub_text(_ADDRESS.sub("", text[:MAX_REPR]))}
