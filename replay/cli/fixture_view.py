"""What a check of fixtures came to: a table, each failure in words with its replay's report, and one JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dumps.text import printable
from replay.cli.report_view import show as show_report
from replay.fixtures.check import Outcome, Status
from replay.fixtures.document import Fixture, InvalidFixture
from replay.report import SCHEMA_VERSION, tool_version

STYLES = {
    Status.PASSED: "green",
    Status.FAILED: "bold red",
    Status.INCONCLUSIVE: "bold yellow",
    Status.SKIPPED: "yellow",
}
NOTHING_CHECKED = "nothing was checked: no replay could be made here"


@dataclass(slots=True, kw_only=True)
class Checked:
    """A fixture of a check. ``fixture`` is None while it was not read, and where it cannot be: then ``invalid`` says
    why."""

    path: Path
    fixture: Fixture | None = None
    invalid: InvalidFixture | None = None
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that makes a check fail: where, what it is in words, and what to do."""

    file: Path
    title: str
    text: str
    remedy: str = ""
    outcome: Outcome | None = None


def problems_of(found: Sequence[Checked], *, allow_inconclusive: bool) -> Iterator[Problem]:
    """What makes the check fail, in the order of the fixtures; nothing where it passes."""
    for one in found:
        if one.invalid is not None:
            yield Problem(
                file=one.path / "fixture.json",
                title=one.path.name,
                text=str(one.invalid),
                remedy=one.invalid.remedy,
            )
        for outcome in one.outcomes:
            allowed = allow_inconclusive and outcome.status is Status.INCONCLUSIVE
            if outcome.status in (Status.FAILED, Status.INCONCLUSIVE) and not allowed:
                yield Problem(
                    file=outcome.fixture.document,
                    title=outcome.name,
                    text="; ".join(outcome.problems),
                    remedy=outcome.remedy,
                    outcome=outcome,
                )
    outcomes = [outcome for one in found for outcome in one.outcomes]
    if outcomes and all(outcome.status in (Status.INCONCLUSIVE, Status.SKIPPED) for outcome in outcomes):
        yield Problem(
            file=found[0].path.parent,
            title="all fixtures",
            text=NOTHING_CHECKED,
            remedy="A replay with --target schedule, or of a program with its recorded answers, needs no weights.",
        )


def exit_code_of(found: Sequence[Checked], *, allow_inconclusive: bool = False, run: bool = True) -> int:
    """0 where every fixture can be read and, with ``run``, every replay came to what it should; else 1."""
    if not run:
        return int(any(one.invalid is not None for one in found))
    return int(next(problems_of(found, allow_inconclusive=allow_inconclusive), None) is not None)


def show(console: Console, found: Sequence[Checked], *, allow_inconclusive: bool) -> None:
    """Print the table, then what failed. All text that came from a fixture or a dump is escaped."""
    table = Table(box=None, pad_edge=False)
    for heading in ("fixture", "state", "replay", "wanted", "came to", "time"):
        table.add_column(heading, justify="right" if heading == "time" else "left", overflow="fold")
    for one in found:
        if one.invalid is not None:
            table.add_row(printable(one.path.name), "-", "-", "-", Text("cannot be read", style="bold red"), "-")
        for outcome in one.outcomes:
            table.add_row(
                printable(outcome.fixture.name),
                outcome.fixture.state,
                printable(outcome.replay.label),
                outcome.wanted,
                _came_to(outcome),
                f"{outcome.seconds:.1f} s",
            )
    console.print(table)
    for problem in problems_of(found, allow_inconclusive=allow_inconclusive):
        console.print()
        if problem.outcome is not None:
            show_outcome(console, problem.outcome)
        else:
            _heading(console, problem.title, "failed", "bold red")
            _lines(console, [problem.text], problem.remedy)


def _came_to(outcome: Outcome) -> Text:
    text = Text(printable(outcome.seen), style=STYLES[outcome.status])
    if outcome.status is not Status.PASSED:
        text.append(f" ({outcome.status})" if outcome.status != outcome.seen else "")
    return text


def show_outcome(console: Console, outcome: Outcome) -> None:
    """The name of a replay and what it came to, then `show_details`."""
    _heading(console, outcome.name, outcome.status.value, STYLES[outcome.status])
    show_details(console, outcome)


def show_details(console: Console, outcome: Outcome) -> None:
    """Why what a replay came to is not right, then its report as ``pplx-replay run`` prints it."""
    _lines(console, outcome.problems, outcome.remedy)
    if outcome.report is not None:
        console.print()
        show_report(console, outcome.report)
        for line in str(outcome.report.get("output", "")).splitlines():
            console.print(Text(f"| {printable(line, 1000)}", style="dim"))
    elif outcome.error is not None and outcome.error.evidence:
        console.print(Text(outcome.error.evidence, style="dim"))


def _heading(console: Console, name: str, word: str, style: str) -> None:
    console.print(Text(printable(name, 300), style="bold").append(f": {word}", style=style))


def _lines(console: Console, problems: Sequence[str], remedy: str) -> None:
    for problem in problems:
        console.print(Text(printable(problem, 2000)))
    if remedy:
        console.print(Text(printable(remedy, 1000), style="dim"))


def list_fixtures(console: Console, found: Sequence[Checked]) -> None:
    """A line for each fixture: its state, its replays, its note."""
    table = Table(box=None, pad_edge=False)
    for heading in ("fixture", "state", "failure", "replays", "note"):
        table.add_column(heading, overflow="fold")
    for one in found:
        if one.fixture is None:
            table.add_row(printable(one.path.name), "-", "-", "-", Text(printable(str(one.invalid), 500), style="red"))
            continue
        identity = one.fixture.signature.identity
        table.add_row(
            printable(one.fixture.name),
            one.fixture.state,
            printable(identity.kind + (f" ({identity.invariant})" if identity.invariant else "")),
            str(len(one.fixture.replays)),
            printable(one.fixture.note, 200),
        )
    console.print(table)


def as_document(found: Sequence[Checked]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": tool_version(),
        "fixtures": [
            {
                "name": one.path.name,
                "path": str(one.path),
                "state": one.fixture.state.value if one.fixture else None,
                "error": {"message": str(one.invalid), "remedy": one.invalid.remedy} if one.invalid else None,
                "replays": [_outcome(outcome) for outcome in one.outcomes],
            }
            for one in found
        ],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "label": outcome.replay.label,
        "options": dict(outcome.replay.options),
        "status": outcome.status.value,
        "wanted": outcome.wanted.value,
        "verdict": outcome.seen if outcome.report is not None else None,
        "problems": list(outcome.problems),
        "remedy": outcome.remedy,
        "seconds": round(outcome.seconds, 3),
        "report": outcome.report,
        "error": outcome.error.as_json() if outcome.error else None,
    }
