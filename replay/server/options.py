"""Options that a client may send: those of `pplx-replay run`, less what names a file, a URL or code.

Values are checked by the rules of the job itself (replay.targets.job), so that command and server cannot differ.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from replay.errors import UsageError
from replay.isolate.units import duration
from replay.targets.job import CHOICES, options_of
from replay.verdict import Verdict

NAMES = (*CHOICES, "set", "repeat", "window", "full", "salvage", "expect", "timeout")
NEVER_FROM_A_CLIENT = frozenset({"dump", "model", "signature", "app", "endpoint", "path", "url"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """``values`` go into a job as they are. ``expect`` only decides the exit code: no expectation reaches a run."""

    values: dict[str, Any]
    timeout_s: float
    expect: Verdict | None = None

    def job(self, dump: str) -> dict[str, Any]:
        """The job for a worker that opens ``dump``, a path."""
        return {**self.values, "dump": dump, "timeout_s": self.timeout_s}


def from_client(given: object, *, max_timeout_s: float) -> ClientOptions:
    """Options out of a client's JSON. ``timeout`` is seconds or "500ms", and counts as at most ``max_timeout_s``.

    Raises:
        UsageError: not an object, an unknown name (with the nearest ones), one that names a file or code, or a value
            of the wrong type or range.
    """
    if not isinstance(given, dict):
        raise UsageError("options must be a JSON object", remedy='write them as {"target": "schedule"}')
    for name in given:
        if name in NEVER_FROM_A_CLIENT:
            raise UsageError(
                f"option {name!r} is not accepted over the network: no path, URL or code comes from a client",
                remedy="use pplx-replay run for that",
            )
        if name not in NAMES:
            raise UsageError(f"there is no option {name[:80]!r}", remedy=nearest(name, NAMES))
    target = given.get("target")
    if isinstance(target, str) and target.startswith(("app=", "endpoint=")):
        raise UsageError(
            f"target {target.partition('=')[0]!r} is not accepted over the network: it names code or a URL",
            remedy="use pplx-replay run for that",
        )
    asked_s = duration(given["timeout"], name="timeout") if "timeout" in given else max_timeout_s
    values = {name: value for name, value in given.items() if name not in ("expect", "timeout")}
    options_of(values)
    return ClientOptions(values=values, timeout_s=min(asked_s, max_timeout_s), expect=_verdict(given.get("expect")))


def nearest(name: str, known: Iterable[str]) -> str:
    """One sentence that gives the choices most like ``name``, or all of them."""
    choices = list(known)
    near = difflib.get_close_matches(name[:80], choices, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(choices)}"


def _verdict(value: object) -> Verdict | None:
    if value is None:
        return None
    choices = [verdict.value for verdict in Verdict]
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"expect: wants {' or '.join(choices)}, got {str(value)[:40]!r}")
    return Verdict(value)
