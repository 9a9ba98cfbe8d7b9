"""What a batch came to: one row for each kind of end, worst first, and one document for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dumps.text import printable
from replay.cli.failures import EXIT_OUR_ERROR, EXIT_USAGE
from replay.cli.report_view import STYLES
from replay.errors import ProgramDump
from replay.isolate.result import RunError
from replay.report import SCHEMA_VERSION, exit_code, tool_version
from replay.verdict import Verdict

LEFT_OUT = "left-out"
"""Outcome of a dump of a program in a folder of dumps of engines."""

WORST_FIRST = (70, 2, 4, 21, 20, 12, 11, 10, 13)
"""Exit codes of dumps in the order in which one stands for the whole batch."""

NAMES_SHOWN = 20
"""Dumps that the table names of those that ended alike; the JSON document has all."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One dump of a batch. Of ``report`` and ``error`` exactly one is set once it was replayed.

    ``alone`` says why it was replayed in a worker of its own; empty when it was not. ``unwritten`` says why its report
    is in no file. ``named``: it was given by its name, and not found in a folder.
    """

    dump: Path
    name: str
    report_file: Path
    report: dict[str, Any] | None = None
    error: RunError | None = None
    alone: str = ""
    unwritten: str = ""
    named: bool = True

    @property
    def ended(self) -> bool:
        return self.report is not None or self.error is not None

    @property
    def of_a_program(self) -> bool:
        """Whether it lies in a folder among those of engines, and is none: left out, and no mistake of anybody."""
        return not self.named and self.error is not None and self.error.kind == ProgramDump.__name__

    @property
    def outcome(self) -> str:
        """The verdict, or the class of the error."""
        if self.report is not None:
            return str(self.report["verdict"])
        if self.of_a_program:
            return LEFT_OUT
        return self.error.kind if self.error else "not replayed"

    def exit_code(self, expected: Verdict | None) -> int:
        """What ``pplx-replay run`` would exit with; that of our own error when the report could not be written."""
        if self.unwritten:
            return EXIT_OUR_ERROR
        if self.report is not None:
            return exit_code(Verdict(self.report["verdict"]), expected=expected)
        return self.error.exit_code if self.error and not self.of_a_program else 0

    def document(self) -> dict[str, Any]:
        """What is kept of it as JSON: its report, or in its place the error."""
        if self.report is not None:
            return self.report
        assert self.error is not None
        error = self.error.as_json() | {"evidence": self.error.evidence}
        return {"schema_version": SCHEMA_VERSION, "tool_version": tool_version(), "error": error}


@dataclass(slots=True, kw_only=True)
class Group:
    """Dumps that ended alike: the same verdict and reason, and the same failures expected and seen."""

    outcome: str
    reason_code: str
    signature: str
    entries: list[Entry] = field(default_factory=list)

    @property
    def first_divergence(self) -> tuple[str, dict[str, Any]] | None:
        """Of the dump in which the replay left the record first: its name, and the report's divergence."""
        found = [(e.name, e.report["divergence"]) for e in self.entries if e.report and e.report["divergence"]]
        return min(found, key=lambda one: (one[1]["step"] is not None, one[1]["step"] or 0), default=None)


def worst(entries: Sequence[Entry], expected: Verdict | None) -> int:
    """The exit code of the whole: 0 when every dump came to what was expected."""
    ended = [entry for entry in entries if entry.ended]
    if ended and all(entry.of_a_program for entry in ended):
        return EXIT_USAGE
    codes = {entry.exit_code(expected) for entry in ended} - {0}
    return min(codes, key=lambda code: WORST_FIRST.index(code) if code in WORST_FIRST else -1, default=0)


def groups(entries: Sequence[Entry]) -> list[Group]:
    """The largest group first, those alike in size in the order of the dumps."""
    found: dict[tuple[str, str, str], Group] = {}
    for entry in entries:
        if entry.ended:
            reason = entry.report["reason_code"] if entry.report else ""
            key = (entry.outcome, reason, _signature(entry))
            group = found.setdefault(key, Group(outcome=key[0], reason_code=key[1], signature=key[2]))
            group.entries.append(entry)
    return sorted(found.values(), key=lambda group: -len(group.entries))


def _signature(entry: Entry) -> str:
    if entry.report is None:
        return "-"
    expected, seen = (_identity(entry.report[key]) for key in ("expected_signature", "signature"))
    if entry.report["mode"] == "none":
        return f"{expected} expected, not replayed" if expected else "-"
    if expected == seen:
        return seen or "-"
    return f"{seen or 'nothing'} instead of {expected or 'no failure'}"


def _identity(signature: Mapping[str, Any] | None) -> str:
    """A failure's identity in a few words: it is what makes two failures the same, wherever they happen."""
    if signature is None:
        return ""
    identity = signature["identity"]
    words = [identity["kind"]]
    if identity["invariant"]:
        words.append(f"({identity['invariant']})")
    if identity["exception_type"]:
        words.append(identity["exception_type"].rsplit(".", 1)[-1])
    return " ".join(words)


def as_document(entries: Sequence[Entry], *, code: int, interrupted: bool, seconds: float) -> dict[str, Any]:
    """The batch as one JSON document. ``dumps`` is in the order in which they were named."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": tool_version(),
        "exit_code": code,
        "interrupted": interrupted,
        "total_s": round(seconds, 3),
        "groups": [
            {
                "outcome": group.outcome,
                "reason_code": group.reason_code,
                "signature": group.signature,
                "count": len(group.entries),
                "dumps": [str(entry.dump) for entry in group.entries],
                "first_divergence": group.first_divergence and group.first_divergence[1],
            }
            for group in groups(entries)
        ],
        "dumps": [
            {
                "path": str(entry.dump),
                "report_file": str(entry.report_file) if entry.ended and not entry.unwritten else None,
                "unwritten": entry.unwritten or None,
                "alone": entry.alone or None,
                "report": entry.report,
                "error": entry.error.as_json() if entry.error else None,
            }
            for entry in entries
        ],
    }


def show(console: Console, entries: Sequence[Entry]) -> None:
    """Print the table. All text that came from a dump is escaped."""
    table = Table(box=None, pad_edge=False)
    for heading in ("verdict", "count", "signature", "dumps", "first divergence"):
        right = heading == "count"
        table.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for group in groups(entries):
        if group.outcome == LEFT_OUT:
            outcome = Text("left out (of a program)", style="dim")
        elif group.entries[0].error is not None:
            outcome = Text(printable(f"error ({group.outcome})"), style="bold red")
        else:
            outcome = Text(group.outcome, style=STYLES.get(group.outcome, "bold red"))
        if group.reason_code:
            outcome.append(f" ({printable(group.reason_code)})", style="default not bold")
        names = ", ".join(printable(entry.name, 300) for entry in group.entries[:NAMES_SHOWN])
        if more := len(group.entries[NAMES_SHOWN:]):
            names += f" and {more} more"
        where = _divergence(group.first_divergence)
        table.add_row(outcome, str(len(group.entries)), printable(group.signature, 300), names, where)
    console.print(table)
    for entry in entries:
        if entry.error is not None:
            console.print(Text(f"- {printable(entry.name, 300)}: {entry.error.message}"))
            if entry.error.remedy:
                console.print(Text(f"  {entry.error.remedy}", style="dim"))
    for why, alone in _alone(entries).items():
        few = ", ".join(alone[:NAMES_SHOWN]) + (f" and {len(alone) - NAMES_SHOWN} more" * (len(alone) > NAMES_SHOWN))
        console.print(Text(f"- replayed alone: {few}: {printable(why, 500)}"))


def _alone(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Names of the dumps that had a worker of their own, by the reason: a worker that dies leaves many of them."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        if entry.alone:
            found.setdefault(entry.alone, []).append(printable(entry.name, 300))
    return found


def _divergence(found: tuple[str, Mapping[str, Any]] | None) -> str:
    if found is None:
        return "-"
    name, divergence = found
    step = "before the first step" if divergence["step"] is None else f"step {divergence['step']}"
    text = f"{name}: {step}, request {divergence['request_id']}, {divergence['kind']}"
    if divergence["output_index"] is not None:
        text += f" of output token {divergence['output_index']}"
    return printable(text, 300)
