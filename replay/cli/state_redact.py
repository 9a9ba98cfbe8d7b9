"""``pplx-state redact``: a dump that can be given to others, and whether it still gives the same verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from dumps.redact import Change, Redacted, redact_dump
from dumps.schema.reader import open_dump
from dumps.text import printable
from replay.cli.console import command, json_option, note, print_json, stdout
from replay.cli.params import as_seconds
from replay.cli.progress import progress
from replay.isolate.limits import Limits
from replay.redaction import Check, Outcome, redact_file

STAGES = {
    "open": "checking: opening",
    "load": "checking: loading the model",
    "fast-forward": "checking: fast-forward (tokens)",
    "step": "checking: replaying (steps)",
}
MAX_EXAMPLE = 60  # characters


@command()
@click.argument("path", metavar="DUMP", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The dump to write; needed without --preview.")
@click.option("--prompt", is_flag=True, help="Also map token ids, and drop KV contents, logprobs and all text.")
@click.option("--preview", is_flag=True, help="List what would go and what would stay. Writes nothing.")
@click.option("--examples", is_flag=True, help="With --preview, on a terminal: a piece of what would go.")
@click.option(
    "--check/--no-check", default=True, show_default=True, help="Replay before and after, and compare the verdicts."
)
@click.option("--model", type=click.Path(path_type=Path), help="Weights for the check.  [default: by fingerprint]")
@click.option(
    "--timeout",
    callback=as_seconds,
    default="300s",
    show_default=True,
    metavar="DURATION",
    help="Budget for the steps of each replay of the check.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there, and keep one whose verdict is lost.")
@json_option
def redact(
    path: Path,
    out: Path | None,
    prompt: bool,
    preview: bool,
    examples: bool,
    check: bool,
    model: Path | None,
    timeout: float,
    force: bool,
    as_json: bool,
) -> int:
    """Write a copy of DUMP without secrets and without people's text that no replay needs.

    Token ids and KV contents stay, and so does the recorded world of a program. With --prompt they go too: ids are
    mapped by a secret permutation, which keeps lengths and shared prefixes, and what needs the model's numbers cannot
    be replayed any more. A permutation is no encryption: how often an id occurs can still be counted. The new dump
    says what was taken out of it.

    Exits with 0, or, when the replay of the copy gives another verdict though it should not, with the code of that
    verdict; then there is no file.

    \b
    Examples:
      pplx-state redact crash.pplx --preview
      pplx-state redact crash.pplx -o for-the-team.pplx
      pplx-state redact crash.pplx -o for-everybody.pplx --prompt
    """
    if preview:
        if out is not None:
            raise click.UsageError("--preview writes nothing: leave out -o")
        if examples and (as_json or not stdout().is_terminal):
            raise click.UsageError("--examples shows people's text, and only on a terminal")
        return _preview(path, prompt=prompt, examples=examples, as_json=as_json)
    if out is None:
        raise click.UsageError("where to? Name the new dump with -o, or look first with --preview.")
    if examples:
        raise click.UsageError("--examples goes with --preview")
    if model is not None and not check:
        raise click.UsageError("--model is for the check, and --no-check leaves that out")
    outcome = _redact(path, out, prompt=prompt, check=check, force=force, model=model, timeout=timeout)
    if as_json:
        print_json(_document(path, outcome.redacted, prompt=prompt) | _written(out, outcome))
    else:
        _show(path, outcome.redacted, prompt=prompt)
        _tell(out, outcome)
    return outcome.check.exit_code


def _redact(
    path: Path, out: Path, *, prompt: bool, check: bool, force: bool, model: Path | None, timeout: float
) -> Outcome:
    with progress() as update:

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "progress":
                update(STAGES.get(event["stage"], "checking"), event["done"], event["total"])

        limits = Limits(timeout_s=timeout)
        return redact_file(
            path, out, prompt=prompt, check=check, force=force, model=model, limits=limits, on_event=on_event
        )


def _preview(path: Path, *, prompt: bool, examples: bool, as_json: bool) -> int:
    with open_dump(path) as dump:
        redacted = redact_dump(dump, prompt=prompt)
    if as_json:
        print_json(_document(path, redacted, prompt=prompt))
    else:
        _show(path, redacted, prompt=prompt, examples=examples)
        note("nothing was written")
    return 0


def _document(path: Path, redacted: Redacted, *, prompt: bool) -> dict[str, Any]:
    return {
        "dump": str(path),
        "prompt": prompt,
        "changes": [
            {"path": one.path, "what": one.what, "reason": one.reason, "count": one.count, "bytes": one.size}
            for one in redacted.changes
        ],
        "kept": [
            {"path": one.path, "reason": one.reason, "count": one.count, "bytes": one.size} for one in redacted.kept
        ],
        "claims": [
            {"kind": one.kind, "kept": one.kept, "why": one.why, "own": one.own} for one in redacted.claims
        ],
    }  # fmt: skip


def _written(out: Path, outcome: Outcome) -> dict[str, Any]:
    return {
        "out": str(out) if outcome.written else None,
        "id": outcome.redacted.state.manifest.id,
        "check": outcome.check.to_json(),
    }


def _show(path: Path, redacted: Redacted, *, prompt: bool, examples: bool = False) -> None:
    console = stdout()
    if redacted.changes:
        console.print(_changes(redacted.changes, examples=examples))
    else:
        console.print(f"{printable(str(path), 1000)} holds nothing that would go")
    if redacted.kept:
        console.print(Text("\nStays, and may hold text of people", "bold"))
        table = _table("field", "places", "bytes", "why")
        for one in redacted.kept:
            table.add_row(printable(one.path, 80), f"{one.count:,}", f"{one.size:,}", one.reason)
        console.print(table)
    shown = [one for one in redacted.claims if prompt or one.own or not one.kept]
    if shown:
        console.print(Text("\nVerdicts", "bold"))
        table = _table("kind", "", "why")
        for claim in shown:
            named = f"{claim.kind} (this dump's)" if claim.own else claim.kind
            table.add_row(named, "kept" if claim.kept else "lost", claim.why)
        console.print(table)


def _changes(changes: Sequence[Change], *, examples: bool) -> Table:
    table = _table("field", "", "places", "bytes", "why", *(["such as"] if examples else []))
    for one in changes:
        row = [printable(one.path, 80), one.what, f"{one.count:,}", f"{one.size:,}", one.reason]
        table.add_row(*row, *([_example(one.example)] if examples else []))
    return table


def _example(value: str | bytes) -> str:
    return printable(value if isinstance(value, str) else value.decode("utf-8", "backslashreplace"), MAX_EXAMPLE)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("places", "bytes") else "left", no_wrap=True)
    return table


def _tell(out: Path, outcome: Outcome) -> None:
    console = stdout()
    console.print()
    console.print(Text.assemble(("checked   ", "bold"), _said(outcome.check)))
    if outcome.written:
        console.print(Text.assemble(("redacted  ", "bold green"), printable(str(out), 1000)))
    else:
        console.print(Text.assemble(("lost      ", "bold red"), "nothing was written; --force keeps the file"))


def _said(check: Check) -> str:
    if check.before is None or check.after is None:
        return f"no: {check.note}"
    before = f"{check.before.verdict} {check.before.reason_code}".strip()
    after = f"{check.after.verdict} {check.after.reason_code}".strip()
    where = f"in target {check.target}"
    if check.kept and not check.claimed:
        return f"{before} {where} before and after; what that target cannot show is lost"
    if check.kept:
        return f"{before} {where} before and after"
    text = f"{before} before, {after} after, {where}"
    if check.note:
        text += f" ({check.note})"
    return text if before != after else f"{text}: another failure"
