"""The outermost layer: every answer has the security headers, every error the one JSON shape."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.typedefs import Handler

from replay.errors import UsageError
from replay.server.problems import Problem, from_usage, json_response, problem

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "pplx-replay",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

log = logging.getLogger(__name__)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Problem as error:
        found = error
    except UsageError as error:
        found = from_usage(error)
    except web.HTTPException as error:
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        found = problem(error.status, error.reason.replace(" ", ""), f"{error.status} {error.reason}", headers=headers)
    except Exception:
        log.exception("a request failed")
        found = problem(500, "InternalError", "the server met an error of its own", remedy="its log has the traceback")
    response = json_response(found.body, status=found.status, headers=found.headers)
    if request.can_read_body and not request.content.at_eof():
        # The rest of a refused upload is still on its way; the connection cannot carry another request.
        response.force_close()
    return response


async def add_headers(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal handler for `on_response_prepare`: streams get the headers, too."""
    response.headers.update(HEADERS)
