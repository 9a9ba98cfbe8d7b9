"""Rows of a report that only a replay against an endpoint has: what was sent there, and what came back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def endpoint_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values, as `replay.cli.report_view` prints them."""
    endpoint = report["endpoint"]
    if not endpoint["tries"]:
        yield "replayed", "nothing was sent"
        return
    yield "endpoint", f"{endpoint['url']}, model {endpoint['model'] or 'as recorded'}"
    yield "sent", _sent(endpoint)
    if failure := report["failure"]:
        yield "message", f'"{failure["message"]}"'
    requests = report["requests"]
    ends = [one["status"] for one in requests]
    yield "requests", f"{len(ends)}: " + ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends))
    if compared := [one["text"] for one in requests if one["text"]]:
        same = sum(one["as_recorded"] for one in compared)
        yield "texts", f"{same} of {len(compared)} as recorded, as far as both go"
    repeat = report["repeat"]
    yield "tries", f"reproduced {repeat['reproduced']} of {repeat['n']}"


def endpoint_meaning(report: Mapping[str, Any]) -> str:
    """What stands behind the verdict; "" for the words that every report has."""
    if report["verdict"] == "reproduced":
        repeat = report["repeat"]
        return f"a failure of the same kind came back, {repeat['reproduced']} of {repeat['n']} times"
    if report["verdict"] == "not-reproduced":
        return f"0 of {report['repeat']['n']} tries had this failure, which proves little"
    return ""


def _sent(endpoint: Mapping[str, Any]) -> str:
    count = f"{endpoint['calls']} request{'s' * (endpoint['calls'] != 1)}"
    text = f"{count} over {endpoint['schedule_s']:g} s as recorded, prompts {endpoint['prompts'].replace('-', ' ')}"
    if endpoint["dropped_parameters"]:
        text += f"; without {', '.join(endpoint['dropped_parameters'])}"
    return text
