"""How a search is watched, and what is said of its end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from dumps.text import printable
from replay.cli.console import note, stderr
from replay.cli.minimise_view import named
from replay.fuzz.found import Broken, Found
from replay.fuzz.fuzz import OnStage
from replay.fuzz.outcome import Outcome
from replay.fuzz.violation import PROPERTIES
from replay.minimise.words import needs_in_words
from replay.targets.app.options import is_app

EVERY_S = 5.0
MAX_LINE = 2000
OnFound = Callable[[Found | Broken], None]


@contextmanager
def watching() -> Iterator[tuple[OnStage, OnFound]]:
    """On a terminal one line that changes; otherwise a line now and then. What is found is said at once."""
    console = stderr()
    if not console.is_terminal:
        yield _Lines(), lambda found: note(_found(found))
        return
    with console.status("") as status:
        began = time.monotonic()

        def on_stage(what: str, done: int, total: int | None) -> None:
            text = f"{what} ({_count(done, total)}, {time.monotonic() - began:.0f} s)"
            status.update(Text(printable(text, 300)))

        def on_found(found: Found | Broken) -> None:
            console.print(_found(found))

        yield on_stage, on_found


class _Lines:
    def __init__(self) -> None:
        self._said: float | None = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if self._said is None or now - self._said >= EVERY_S:
            note(f"{printable(what, 300)} ({_count(done, total)})")
            self._said = now


def _count(done: int, total: int | None) -> str:
    return f"{done:,} of {total:,} examples" if total is not None else f"{done:,} trials"


def _found(found: Found | Broken) -> str:
    if isinstance(found, Broken):
        return printable(f"broken: {found.violation.rule}: {found.violation.message}", MAX_LINE)
    where = "found before" if found.before else "found"
    return printable(f"{where}: {named(found.identity)}: {found.left or found.note}", MAX_LINE)


def _replay(found: Found) -> str:
    target = [f"--target {found.target}"] if found.target != "inference" else []
    return " ".join(["pplx-replay run", shlex.quote(str(found.dump)), *target])


def show(console: Console, outcome: Outcome) -> None:
    """The end, in words. Text of dumps is escaped."""

    def row(name: str, text: str, style: str = "bold") -> None:
        console.print(Text.assemble((f"{name:<13}", style), printable(text, MAX_LINE)))

    for identity, path in outcome.known.items():
        row("known", f"{named(identity)}: {path}")
    for found in outcome.found:
        row("found before" if found.before else "found", named(found.identity), "bold red")
        summary = "; ".join(part for part in (found.left, needs_in_words(found.needs)) if part)
        if summary:
            row("  left", summary)
        if found.note:
            row("  note", found.note, "bold yellow")
        row("  change", f"{found.change}, example {found.number:,}")
        row("  dump", str(found.dump) if is_app(found.target) else f"{found.dump}, replay it with: {_replay(found)}")
        if found.test is not None:
            row("  test", f"{found.test}, run it with: pytest {found.test}")
    if not outcome.found:
        row("found", "nothing that the dumps do not record", "bold green")
    for number, one in enumerate(outcome.broken):
        if not number:
            console.print(Text("\nProperties of pplx-replay that do not hold; please report them:", style="bold red"))
        row("broken", f"{one.violation.rule}: {PROPERTIES[one.violation.rule]}", "bold red")
        row("  seen", one.violation.message)
        row("  change", f"{one.change}, example {one.number:,}")
        row("  evidence", str(one.evidence))
    lost = f", {outcome.lost:,} without an answer ({outcome.last_lost})" if outcome.lost else ""
    drawn = f" different ones of {outcome.drawn:,} drawn" if outcome.drawn > outcome.examples else ""
    row("examples", f"{outcome.examples:,}{drawn} in target {outcome.target}{lost}; {outcome.seconds:.1f} s")
    for text in outcome.notes:
        row("note", text)
    row("again", f"--seed {outcome.seed} searches the same")
    if outcome.interrupted:
        row("not done", "interrupted; what was found is kept", "bold yellow")
