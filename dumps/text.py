"""Text of a dump, made safe to show: a dump is untrusted, and terminals obey what is printed on them."""

from __future__ import annotations

import unicodedata

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

# Controls, format characters (bidi overrides, zero width), surrogates, private use, unassigned, and the line and
# paragraph separators. Everything else is kept, so that a prompt in any script stays readable.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str, limit: int = 200) -> str:
    """``text`` on one line, at most ``limit`` of its characters, with everything a terminal could obey escaped.

    What was cut is counted at the end. The result may still hold "[" and "]": hand it to rich as a
    `rich.text.Text` or with markup off.
    """
    shown = text[:limit]
    safe = shown if shown.isascii() and shown.isprintable() else "".join(_escape(c) for c in shown)
    return safe if len(text) <= limit else f"{safe}… (+{len(text) - limit} characters)"


def _escape(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE:
        return char
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
