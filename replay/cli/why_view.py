"""A table of changes and what they did, and what that says, for people."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from dumps.text import printable
from replay.cli.report_view import REASONS
from replay.why.change import Left
from replay.why.effect import Effect, Trial, failure_in_words
from replay.why.numbers import in_words
from replay.why.outcome import Outcome

STYLES = {
    Effect.VANISHES: "bold green",
    Effect.STAYS: "dim",
    Effect.ANOTHER: "bold magenta",
    Effect.DIVERGES: "bold red",
    Effect.CANNOT_TELL: "bold yellow",
}
MAX_NAME = 60
MAX_NOTE = 1000
NO_CHANGE = "as recorded"
WIDTH = 110
AS_IT_IS: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}  # names can be copied


def show(console: Console, outcome: Outcome) -> None:
    """Print it. All text that came from a dump is escaped."""
    report = outcome.baseline.report
    console.print(Text(f"failure  {_safe(failure_in_words(report))}", style="bold"))
    mode = f", {report['mode']}" if report["mode"] not in ("schedule", "none") else ""
    console.print(Text(f"target   {_safe(outcome.target)}{mode}"))
    for note in outcome.notes:
        console.print(Text(f"note     {_safe(note)}", style="yellow"))
    console.print()
    _table(console, outcome)
    console.print()
    for line in outcome.words:
        _paragraph(console, line)
    _left(console, outcome.left)
    console.print()
    if outcome.numbers is not None:
        console.print(Text("Noise or corruption", style="bold"))
        for line in in_words(outcome.numbers):
            _paragraph(console, line, indent="  ")
    else:
        _paragraph(console, f"Noise or corruption: not computed: {outcome.no_numbers}.")
    if not outcome.complete:
        reason = "interrupted" if outcome.interrupted else "the time is used up (--time)"
        console.print(Text(f"Not everything was tried: {reason}.", style="bold yellow"))


def _table(console: Console, outcome: Outcome) -> None:
    """All single changes, and of the pairs those that make the failure vanish."""
    vanishing = [trial for trial in outcome.pairs if trial.effect is Effect.VANISHES]
    trials = [*outcome.singles, *vanishing]
    width = max([len(_name(trial)) for trial in trials] + [len(NO_CHANGE)]) + 2
    repeat = outcome.baseline.report["repeat"]
    _row(console, width, "change", "failure", "", "verdict and notes", "bold")
    _row(
        console, width, NO_CHANGE, Effect.STAYS.value, "dim", f"reproduced {repeat['reproduced']} of {repeat['n']}", ""
    )
    for trial in trials:
        first, *more = _notes(trial)
        _row(console, width, _name(trial), trial.effect.value, STYLES[trial.effect], first, "")
        for note in more:
            _row(console, width, "", "", "", note, "")
    if others := Counter(trial.effect for trial in outcome.pairs if trial not in vanishing):
        counted = ", ".join(f"{effect.value} {count}" for effect, count in others.items())
        console.print(Text(f"{others.total()} pairs that do not make it vanish: {counted} (--json lists them)"))


def _row(console: Console, width: int, name: str, effect: str, style: str, note: str, whole: str) -> None:
    text = Text(f"{name:<{width}}", style=whole).append(f"{effect:<17}", style=style or whole)
    console.print(text.append(note, style=whole))


def _name(trial: Trial) -> str:
    return " + ".join(_safe(change.name, MAX_NAME) for change in trial.changes)


def _notes(trial: Trial) -> list[str]:
    """The verdict with its reason, then a line for each note."""
    head = trial.verdict or trial.error
    if trial.reason:
        head += f": {REASONS.get(trial.reason, trial.reason)}"
    if trial.effect is Effect.ANOTHER:
        head += f": {trial.seen}"
    return [_safe(line) for line in (head, *trial.notes)]


def _left(console: Console, left: Sequence[Left]) -> None:
    if absent := [f"{one.what} ({one.why})" for one in left if not one.applies]:
        _paragraph(console, f"Does not apply: {'; '.join(absent)}.", style="dim")


def _paragraph(console: Console, text: str, *, indent: str = "", style: str = "") -> None:
    for line in textwrap.wrap(_safe(text, 4000), WIDTH, initial_indent=indent, subsequent_indent=indent, **AS_IT_IS):
        console.print(Text(line, style=style))


def _safe(text: str, most: int = MAX_NOTE) -> str:
    return printable(text, most)
