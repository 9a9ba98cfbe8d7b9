"""A check of fixtures for GitHub Actions: annotations at the lines of a pull request, and a summary of the job.

What stands in a report comes from a dump, and so from anybody, while the runner obeys lines that begin with ``::``.
So the report is printed with commands stopped, and every value of a command of ours is escaped.
"""

from __future__ import annotations

import os
import secrets
import string
import sys
from collections.abc import Sequence
from pathlib import Path

from dumps.text import printable
from replay.cli.console import stdout
from replay.cli.fixture_view import Checked, Problem, problems_of, show

MAX_ANNOTATIONS = 10
"""What GitHub shows of one step; the others would be dropped without a word."""

MAX_MESSAGE = 1000
MAX_ROWS = 200
_PLAIN = frozenset(string.ascii_letters + string.digits + " .,=/-")


def report(found: Sequence[Checked], *, allow_inconclusive: bool) -> None:
    """Print the table and the failures, then an annotation for each of the first of them; add to the job's summary if
    there is one."""
    problems = list(problems_of(found, allow_inconclusive=allow_inconclusive))
    token = secrets.token_hex(16)
    _command(f"::stop-commands::{token}")
    show(stdout(), found, allow_inconclusive=allow_inconclusive)
    _command(f"::{token}::", *errors_of(problems))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown(found, problems))


def _command(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def errors_of(problems: Sequence[Problem]) -> list[str]:
    """A command for each problem, at most `MAX_ANNOTATIONS`; the last one counts those that found no room."""
    room = MAX_ANNOTATIONS if len(problems) <= MAX_ANNOTATIONS else MAX_ANNOTATIONS - 1
    lines = [_annotation(problem) for problem in problems[:room]]
    if more := problems[room:]:
        lines.append(
            f"::error title=pplx-replay::{_data(f'{len(more)} more fixtures failed; see the log of this step')}"
        )
    return lines


def _annotation(problem: Problem) -> str:
    text = "\n".join(printable(part, MAX_MESSAGE) for part in (problem.text, problem.remedy) if part)
    file, title = os.path.relpath(problem.file), printable(problem.title, 100)
    return f"::error file={_property(file)},title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(found: Sequence[Checked], problems: Sequence[Problem]) -> str:
    """The summary of the job."""
    outcomes = [outcome for one in found for outcome in one.outcomes]
    lines = [f"### Replay fixtures: {len(problems) or 'none'} failed, {len(outcomes)} replays\n"]
    rows = [(o.fixture.name, o.replay.label, o.wanted.value, o.seen, o.status.value) for o in outcomes]
    rows += [(one.path.name, "-", "-", "cannot be read", "failed") for one in found if one.invalid]
    lines += ["| fixture | replay | wanted | came to | |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows[:MAX_ROWS]]
    if more := rows[MAX_ROWS:]:
        lines.append(f"\n{len(more)} more are in the log.")
    lines += [""]
    lines += [f"- {_cell(p.title)}: {_cell(p.text)} {_cell(p.remedy)}".rstrip() for p in problems[:MAX_ANNOTATIONS]]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text in which nothing is markup: neither of Markdown nor of HTML."""
    safe = printable(text, 300)
    return "".join(char if char in _PLAIN or not char.isascii() else f"&#{ord(char)};" for char in safe)
