"""The errors that the system, or OpenSSL, raised when an exchange was recorded, made again from their text.

Clients wrap what the system raised and some keep only its text, so the recorded message is that of the wrapper; the
system's own words are taken out of it.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl

from replay.runtime.network.connection import ConnectFailed
from replay.runtime.network.play import Event

_ERRNO = re.compile(r"\[Errno (-?\d+)\] (.+)", re.DOTALL)
_AIOHTTP = re.compile(r"Cannot connect to host .{1,300}? ssl:\S+ \[(.*)\]", re.DOTALL)
_OPENSSL = re.compile(r"\[[A-Z0-9_ ]+: ([A-Z0-9_]+)\].*?\(_ssl\.c:\d+\)", re.DOTALL)
_UNRESOLVED = (socket.EAI_NONAME, "Name or service not known")
_DEFAULTS = {"refused": errno.ECONNREFUSED, "reset": errno.ECONNRESET, "timeout": errno.ETIMEDOUT}


def connect_error(failure: ConnectFailed, *, numbered: bool = False) -> OSError:
    """What the system raised for a connection that did not come about; not for "silence".

    ``numbered``: with an errno even where the recorded text shows none. Without, the text alone is the message: asyncio
    raises such errors when every address of a host failed.
    """
    if failure.kind in ("tls", "closed"):
        return tls_error(failure.message)
    kind = socket.gaierror if failure.kind == "dns" else OSError
    number, text = _UNRESOLVED if failure.kind == "dns" else _default(failure.kind)
    message = failure.message
    wrapped = _AIOHTTP.fullmatch(message)
    if wrapped:
        message = wrapped[1]
    found = _ERRNO.search(message)
    if found:
        text = found[2].removesuffix(")") if message[: found.start()].endswith("(") else found[2]
        return kind(int(found[1]), text)
    if not wrapped and not numbered and message and " " in message:
        return type(kind(number, ""))(message)
    return kind(number, message if wrapped else text)


def read_error(event: Event) -> OSError:
    """What the system raises from a read on a connection that failed as ``event`` says."""
    if event.kind == "tls":
        return tls_error(event.message)
    found = _ERRNO.search(event.message)
    if found and event.kind == "timeout":
        return OSError(int(found[1]), found[2])
    return OSError(*_default(event.kind))


def tls_error(message: str) -> ssl.SSLError:
    found = _OPENSSL.search(message)
    if "EOF occurred" in message:
        return ssl.SSLEOFError(ssl.SSL_ERROR_EOF, found[0] if found else "EOF occurred in violation of protocol")
    verify = "CERTIFICATE_VERIFY_FAILED" in message
    error = (ssl.SSLCertVerificationError if verify else ssl.SSLError)(1, found[0] if found else message)
    if found:
        error.reason = found[1]
        error.library = "SSL"
    return error


def _default(kind: str) -> tuple[int, str]:
    number = _DEFAULTS.get(kind, errno.ECONNREFUSED)
    return number, os.strerror(number)
