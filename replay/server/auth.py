"""The token: who may use this server. One per start unless the operator brings one."""

from __future__ import annotations

import hmac
import secrets
import stat
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from replay.errors import UsageError
from replay.server.problems import problem

MIN_TOKEN_CHARS = 16
OPEN_PATHS = frozenset({"/healthz"})


def new_token() -> str:
    """256 random bits, safe in a URL and in a shell."""
    return secrets.token_urlsafe(32)


def read_token(path: Path) -> str:
    """A token from a file. Raises UsageError when others may read the file or it holds no usable token."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError("--token-file: others may read it", remedy=f"chmod 600 {path}")
    return checked_token(text)


def checked_token(token: str) -> str:
    """``token`` itself. Raises UsageError when it can be guessed or cannot stand in a header."""
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"a token has at least {MIN_TOKEN_CHARS} printable ASCII characters and no space",
            remedy="leave it out and one is made",
        )
    return token


def require_token(token: str) -> Middleware:
    """Refuse requests without `Authorization: Bearer <token>`. Runs before any body is read."""
    expected = token.encode("ascii")

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS and not _holds(request, expected):
            raise problem(
                401,
                "Unauthorized",
                "no valid token",
                remedy="send Authorization: Bearer TOKEN with the token that the server printed at its start",
                headers={"WWW-Authenticate": 'Bearer realm="pplx-replay"'},
            )
        return await handler(request)

    return middleware


def _holds(request: web.Request, expected: bytes) -> bool:
    values = request.headers.getall("Authorization", [])
    if len(values) != 1:
        return False
    scheme, _, given = values[0].partition(" ")
    # Bytes of any kind may stand in a header; the comparison must not raise on them, nor tell how much was right.
    same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), expected)
    return scheme.lower() == "bearer" and same
