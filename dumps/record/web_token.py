"""A JSON web token without what is secret in it, at its length and in its shape.

Programs read claims out of their tokens, above all when one expires. So header and payload stay JSON: names, numbers
and literals are kept, each text is masked, and the signature is. What is left opens no door.
"""

from __future__ import annotations

import base64
import json
import re

_MASK = b"x"
_TOKEN = re.compile(rb"(ey[A-Za-z0-9_-]+)\.(ey[A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?', re.DOTALL)
_TYPE = re.compile(rb'("(?:alg|typ|cty)"\s*:\s*)"([A-Za-z0-9+-]{1,16})"')


def mask(data: bytes) -> bytes:
    """``data`` with MASK for every byte, but for web tokens that are whole in it: those keep their shape."""
    out = bytearray(_MASK * len(data))
    for match in _TOKEN.finditer(data):
        header, payload = _masked_part(match[1], keep_types=True), _masked_part(match[2])
        if header is not None and payload is not None:
            out[match.start() : match.end()] = b".".join((header, payload, _MASK * len(match[3])))
    return bytes(out)


def _masked_part(part: bytes, *, keep_types: bool = False) -> bytes | None:
    """Base64 of a JSON object with its texts masked; None where it is none. The algorithm is no secret."""
    try:
        text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
        if not isinstance(json.loads(text), dict):
            return None
    except (ValueError, RecursionError):
        return None
    kept = {match.start(2) for match in _TYPE.finditer(text)} if keep_types else set()

    def masked(match: re.Match[bytes]) -> bytes:
        if match[2] or match.start(1) in kept:  # a name
            return match[0]
        return b'"' + _MASK * len(match[1]) + b'"'

    return base64.urlsafe_b64encode(_STRING.sub(masked, text)).rstrip(b"=")
