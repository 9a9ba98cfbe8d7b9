"""Errors of the HTTP interface, and the one shape they have on the wire.

``{"error": {"class", "message", "remedy", "exit_code", "offset"}}``: the same words and codes as the command's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from replay import strict_json
from replay.errors import UsageError
from replay.isolate.result import Result
from replay.report import SCHEMA_VERSION
from replay.verdict import Reason, Verdict

EXIT_USAGE, EXIT_BAD_DUMP, EXIT_INCONCLUSIVE, EXIT_BUDGET = 2, 4, 20, 21

# 424: the replay depends on weights that are not on this machine.
_STATUS_OF_EXIT = {EXIT_USAGE: 400, EXIT_BAD_DUMP: 422, EXIT_INCONCLUSIVE: 424, EXIT_BUDGET: 504}


class Problem(Exception):
    """A request that gets no report. ``status`` is the HTTP status, ``body`` the JSON answer."""

    def __init__(self, status: int, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(str(body))
        self.status = status
        self.body = dict(body)
        self.headers = dict(headers or {})


def problem(
    status: int, kind: str, message: str, *, remedy: str = "", headers: Mapping[str, str] | None = None
) -> Problem:
    """A Problem of the interface itself, such as a missing token."""
    return Problem(status, {"error": {"class": kind, "message": message, "remedy": remedy}}, headers=headers)


def from_usage(error: UsageError) -> Problem:
    return problem(400, type(error).__name__, str(error), remedy=error.remedy)


def from_run(result: Result, *, dump_id: str | None) -> Problem:
    """A replay that ended in an error. A spent budget has the keys of a report, so that one reader does for both."""
    error = result.error
    assert error is not None
    status = _STATUS_OF_EXIT.get(error.exit_code, 500)
    progress = result.progress and {key: value for key, value in result.progress.items() if key != "event"}
    body: dict[str, Any] = {"error": error.as_json(), "progress": progress}
    if status == 504:
        body |= {
            "schema_version": SCHEMA_VERSION,
            "dump": {"id": dump_id},
            "verdict": Verdict.INCONCLUSIVE.value,
            "reason_code": Reason.BUDGET.value,
        }
    if status == 500:
        body["evidence"] = error.evidence
    return Problem(status, body)


def json_response(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=strict_json.dumps(value), status=status, content_type="application/json", headers=dict(headers or {})
    )
