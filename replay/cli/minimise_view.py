"""How a minimisation is watched, and what is said of its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from dumps.text import printable
from replay.cli.console import note, stderr
from replay.minimise.minimise import OnStage
from replay.minimise.outcome import Outcome
from replay.minimise.words import counted
from replay.signature import Identity

EVERY_S = 5.0
OF_A_RUN = ("requests", "tokens", "blocks", "quirks", "steps")


@contextmanager
def watching() -> Iterator[OnStage]:
    """On a terminal one line that changes; otherwise a line for each stage, and now and then within a long one."""
    console = stderr()
    if not console.is_terminal:
        yield _Lines()
        return
    with console.status("") as status:
        began = time.monotonic()

        def on_stage(what: str, left: str, trials: int) -> None:
            text = f"{what}{f': {left}' if left else ''} ({trials} trials, {time.monotonic() - began:.0f} s)"
            status.update(Text(printable(text, 300)))

        yield on_stage


class _Lines:
    def __init__(self) -> None:
        self._what, self._left, self._said = "", "", 0.0

    def __call__(self, what: str, left: str, trials: int) -> None:
        """Stages that changed nothing are not worth a line."""
        now = time.monotonic()
        news = what != self._what and (left != self._left or not left)
        if news or now - self._said >= EVERY_S:
            note(f"{what}{f': {left}' if left else ' ...'} ({trials} trials)")
            self._left, self._said = left, now
        self._what = what


def show(console: Console, outcome: Outcome) -> None:
    """The end, in words."""

    def row(name: str, text: str, style: str = "bold") -> None:
        console.print(Text.assemble((f"{name:<12}", style), printable(text, 2000)))

    row("failure", named(outcome.signature.identity))
    if outcome.already_minimal:
        row("left", f"already minimal: {outcome.summary}", "bold green")
    else:
        row("left", outcome.summary, "bold green")
        fewer, gone = _changes(outcome)
        if fewer:
            row("from", fewer)
        if gone:
            row("taken out", gone)
        if not (fewer or gone):
            row("from", "as much: nothing could go")
    repeat = outcome.report["repeat"]
    row("replayed", f"reproduced {repeat['reproduced']} of {repeat['n']} in target {outcome.confirmed}")
    counts = outcome.counts
    lost = f", {counts.lost} without an answer" if counts.lost else ""
    row("trials", f"{counts.played} played, {counts.known} known already{lost}; {outcome.seconds:.1f} s")
    for one in outcome.notes:
        row("note", one)
    for identity, path in outcome.others.items():
        row("kept aside", f"another failure, {named(identity)}: {path}", "bold yellow")
    row("dump", str(outcome.out))
    row("test", f"{outcome.test}, run it with: pytest {outcome.test}")
    if not outcome.complete:
        why = "interrupted" if outcome.interrupted else "the time is used up"
        row("not done", f"{why}; the same command goes on from {outcome.work}", "bold yellow")


def named(identity: Identity) -> str:
    """A failure in a few words."""
    words = [identity.kind, f"({identity.invariant})" if identity.invariant else ""]
    words += [identity.exception_type.rsplit(".", 1)[-1], f"in {identity.frame}" if identity.frame else ""]
    return " ".join(word for word in words if word)


def _changes(outcome: Outcome) -> tuple[str, str]:
    """What there is less of, and what there is no more."""
    fewer, gone = [], []
    for name, before in outcome.before.items():
        after = outcome.after.get(name, 0)
        if before == after or name in ("events", "last_event_step"):
            continue
        if after or name in OF_A_RUN:
            fewer.append(f"{counted(before, name)} to {after:,}")
        else:
            gone.append(counted(before, name))
    return ", ".join(fewer), ", ".join(gone)
