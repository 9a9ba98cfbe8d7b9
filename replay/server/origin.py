"""Where a request comes from: what keeps a web page that a browser shows from using a server on its own machine.

`Host` must be a loopback name or an allowed one (a page whose name was rebound to 127.0.0.1 sends its own name), and
`Origin` must be this server itself.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from replay.server.problems import Problem, problem

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
_FOREIGN_SITES = frozenset({"cross-site", "same-site"})


def is_loopback(name: str) -> bool:
    """Whether a host name or address, without port and brackets, can only mean this machine."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_unspecified(name: str) -> bool:
    """Whether this is 0.0.0.0 or ::, an address to listen on and none to be called by."""
    try:
        return ipaddress.ip_address(name).is_unspecified
    except ValueError:
        return False


def host_name(header: str) -> str | None:
    """The name in a Host header, without port and brackets, in lower case. None when it is not a Host header."""
    match = _HOST.fullmatch(header)
    return (match["v6"] or match["name"]).lower() if match else None


def check_origin(allowed_hosts: Iterable[str]) -> Middleware:
    """Refuse a missing, repeated, malformed or foreign Host, a foreign Origin, and requests meant for a proxy."""
    allowed = frozenset(name.lower() for name in allowed_hosts)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or not request.raw_path.startswith("/"):
            raise problem(400, "BadHost", "a request has one Host header and a path")
        name = host_name(hosts[0])
        if name is None or not (is_loopback(name) or name in allowed):
            raise _forbidden("BadHost", "this Host is not served here", "start the server with --allow-host NAME")
        origins = request.headers.getall("Origin", [])
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
            raise _forbidden("BadOrigin", "requests of other origins are refused", "call from this origin, or no page")
        if request.headers.get("Sec-Fetch-Site", "").lower() in _FOREIGN_SITES:
            raise _forbidden("BadOrigin", "requests of other sites are refused", "call from this origin, or no page")
        return await handler(request)

    return middleware


def _forbidden(kind: str, message: str, remedy: str) -> Problem:
    return problem(403, kind, message, remedy=remedy)
