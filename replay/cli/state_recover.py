"""``pplx-state recover``: a dump out of a dead process's flight recorder, or out of a dump that was never finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from dumps.errors import DumpError
from dumps.ledger import grade_name, weak_entries, weakest
from dumps.program_dumps import holds_a_program
from dumps.record.image import is_ring, read_ring
from dumps.record.recover import Recovered, RecoveredBefore, WriterAlive, recover_image, recovered_file
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.reseal import reseal
from dumps.text import printable
from replay.cli.console import command, json_option, print_json, stdout
from replay.cli.failures import EXIT_BAD_DUMP

REPLAYABLE = {
    "shape": "lengths and blocks only: `--target schedule` can replay it, `inference` needs `--record tokens`",
    "tokens": "token ids: every target can replay it",
    "full": "token ids and prompts: every target can replay it",
}
PROGRAM_REPLAYABLE = {
    "shape": 'sizes and times only: no replay; record with level="full"',
    "full": "what the program was told: `--target app=MODULE:CALLABLE` can replay it",
}
MOST_DUMPS = 200
TARGETS = {"shape": ["schedule"], "tokens": ["inference", "schedule"], "full": ["inference", "schedule"]}


@command()
@click.argument("path", metavar="FILE|FOLDER", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="The dump to write, or a folder to write it into. By default the folder of FILE.",
)
@click.option("--force", is_flag=True, help="Also from a process that still runs, or that ended on purpose.")
@json_option
def recover(path: Path, out: Path | None, force: bool, as_json: bool) -> int:
    """Make a dump of what a dead process left: its flight recorder's file (*.ring), or a torn dump (*.pplx).

    With a FOLDER, every ring in it whose process has died is recovered. The file itself is never changed, and no dump
    is ever overwritten. Exits with 0, or with 4 when a file cannot be read or its process still runs; in a FOLDER
    rings of running processes are passed over.

    \b
    Examples:
      pplx-state recover /var/lib/pplx/flight-4711-1.ring
      pplx-state recover /var/lib/pplx -o crashes/
      pplx-state recover torn.pplx -o whole.pplx
    """
    if path.is_dir():
        return _recover_folder(path, out, force=force, as_json=as_json)
    facts = _recover_file(path, out, force=force)
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    return 0


def _recover_file(path: Path, out: Path | None, *, force: bool) -> dict[str, Any]:
    try:
        ring = path.suffix == ".ring" or is_ring(path)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}") from error
    if not ring:
        return _recover_dump(path, out)
    image = read_ring(path)
    recovered = recover_image(image, out or path.parent, force=force)
    before = _written_before(path.parent, recovered)
    return _facts(path, recovered.path, recovered.state) | {"source_kind": "ring", "written_before": before}


def _written_before(folder: Path, recovered: Recovered) -> list[str]:
    """Dumps beside the ring in which its process had written down the same failure. They hold stacks, and may hold KV
    contents."""
    state = recovered.state
    if not state.failures:
        return []
    last, found = state.failures[-1], []
    for path in sorted(folder.glob("*.pplx"), key=lambda path: -_modified(path))[:MOST_DUMPS]:
        if path.resolve() == recovered.path.resolve():
            continue
        try:
            with open_dump(path) as dump:
                other = dump.state
                same = other.manifest.pid == state.manifest.pid and any(
                    (one.kind, one.time_ns, one.step) == (last.kind, last.time_ns, last.step) for one in other.failures
                )
                # Another dump that was recovered has no more to tell than this one.
                if same and weakest(other, "threads").grade == pb.OBSERVED:
                    found.append(str(path))
        except DumpError:
            continue
    return found


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _recover_dump(path: Path, out: Path | None) -> dict[str, Any]:
    name = f"{path.stem}-recovered.pplx"
    target = path.with_name(name) if out is None else out / name if out.is_dir() else out
    with open_dump(path, salvage=True) as dump:
        if dump.torn is None:
            raise DumpError(f"{path} is whole: there is nothing to recover", remedy="Use it as it is.")
        with recovered_file(target) as part:
            reseal(dump, part)
        lost = {"source_kind": "dump", "good_bytes": dump.torn.offset, "torn_because": dump.torn.reason}
    with open_dump(target) as written:
        return _facts(path, target, written.state) | lost


def _recover_folder(folder: Path, out: Path | None, *, force: bool, as_json: bool) -> int:
    if out is not None and not out.is_dir():
        raise click.UsageError(f"-o {out}: a folder of rings needs a folder for its dumps")
    rows = [_try_ring(path, out or folder, force=force) for path in sorted(folder.glob("*.ring"))]
    if as_json:
        print_json({"folder": str(folder), "rings": rows})
    elif rows:
        _print_rows(rows)
    else:
        stdout().print(f"no flight recorder's file (*.ring) in {printable(str(folder), 1000)}")
    return EXIT_BAD_DUMP if any(row["outcome"] == "failed" for row in rows) else 0


def _try_ring(path: Path, out: Path, *, force: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"source": str(path), "outcome": "recovered", "message": ""}
    try:
        image = read_ring(path)
        if image.closed and not force:
            return row | {"outcome": "skipped", "message": "its process ended on purpose"}
        recovered = recover_image(image, out, force=force)
    except (WriterAlive, RecoveredBefore) as error:
        return row | {"outcome": "skipped", "message": str(error)}
    except DumpError as error:
        return row | {"outcome": "failed", "message": str(error)}
    before = _written_before(path.parent, recovered)
    return row | _facts(path, recovered.path, recovered.state) | {"written_before": before}


def _facts(source: Path, written: Path, state: pb.RuntimeState) -> dict[str, Any]:
    live = sum(request.status != "finished" for request in state.requests)
    last = state.failures[-1] if state.failures else None
    level = state.manifest.record_level
    program = holds_a_program(state)
    shows = not program and last is not None and last.HasField("step") and last.kind != "process-death"
    lost = bool(shows and last and last.step not in {step.index for step in state.steps})
    return {
        "source": str(source),
        "dump": str(written),
        "id": state.manifest.id,
        "reason": state.manifest.reason,
        "failure": None if last is None else {"kind": last.kind, "invariant": last.invariant, "message": last.message},
        "record_level": level,
        "failing_step_lost": lost,
        "targets": _program_targets(state) if program else [] if lost else TARGETS.get(level, []),
        "program": _program_counts(state) if program else None,
        "steps": {
            "count": len(state.steps),
            "first": state.steps[0].index if state.steps else None,
            "last": state.steps[-1].index if state.steps else None,
            "last_completed": state.steps[-1].completed if state.steps else None,
        },
        "requests": {"live": live, "finished": len(state.requests) - live},
        "missing": [{"path": e.path, "grade": grade_name(e.grade), "note": e.note} for e in weak_entries(state)],
    }


def _program_counts(state: pb.RuntimeState) -> dict[str, Any]:
    return {
        "entry": state.program.entry if state.HasField("program") else None,
        "exchanges": len(state.exchanges),
        "tool_calls": len(state.tool_calls),
        "file_calls": len(state.syscalls),
    }


def _program_targets(state: pb.RuntimeState) -> list[str]:
    return ["app"] if state.HasField("program") and state.manifest.record_level == "full" else []


def _print(facts: dict[str, Any]) -> None:
    console = stdout()
    console.print(Text.assemble(("recovered  ", "bold green"), printable(facts["dump"], 1000)))
    if "good_bytes" in facts:
        why = printable(facts["torn_because"])
        console.print(f"from       bytes 0..{facts['good_bytes']:,} of the torn dump: {why}")
    steps, requests = facts["steps"], facts["requests"]
    span = f", {steps['first']} to {steps['last']}" if steps["count"] else ""
    torn = ", the last one unfinished" if steps["last_completed"] is False else ""
    if program := facts["program"]:
        console.print(f"program    {printable(program['entry'] or 'entry not known', 200)}")
        calls = (
            f"{program['exchanges']} requests, {program['tool_calls']} tool calls, {program['file_calls']} file calls"
        )
        console.print(f"world      {calls}")
    else:
        console.print(f"steps      {steps['count']}{span}{torn}")
        console.print(f"requests   {requests['live']} live, {requests['finished']} finished")
    if failure := facts["failure"]:
        name = " ".join(word for word in (failure["kind"], failure["invariant"]) if word)
        console.print(f"failure    {printable(name)}: {printable(failure['message'])}")
    for path in facts.get("written_before", ()):
        console.print(f"written    the server had written a dump of this failure: {printable(path, 1000)}")
    level = facts["record_level"]
    if facts["failing_step_lost"]:
        console.print("lost       the step in which it failed: no replay of this dump can judge the failure")
        return
    if program and program["entry"] is None:
        console.print(
            "lost       how the program was entered, and what it asked for after this: no replay of this dump"
        )
    else:
        told = (PROGRAM_REPLAYABLE if program else REPLAYABLE).get(level, "an unknown level")
        console.print(f"recorded   {printable(level)}, {told}")
    for entry in facts["missing"]:
        console.print(f"{entry['grade']:<10} {printable(entry['path'])}: {printable(entry['note'], 300)}")


def _print_rows(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("ring", "outcome", "reason", "steps", "live"):
        table.add_column(heading, justify="right" if heading in ("steps", "live") else "left", no_wrap=True)
    table.add_column("dump", overflow="fold")
    for row in rows:
        counts = (str(row["steps"]["count"]), str(row["requests"]["live"])) if "dump" in row else ("-", "-")
        table.add_row(
            printable(Path(row["source"]).name),
            row["outcome"],
            printable(row.get("reason", "-")),
            *counts,
            printable(row.get("dump") or row["message"], 1000),
        )
    stdout().print(table)
