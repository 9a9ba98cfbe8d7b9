"""``pplx-replay batch``: replay many dumps at once, one report for each and one table for all."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from replay.cli import batch_files, batch_view
from replay.cli.batch_view import Entry
from replay.cli.console import command, note, print_json, stdout
from replay.cli.failures import EXIT_INTERRUPTED, explain
from replay.cli.params import as_seconds, make_absolute
from replay.cli.progress import STOPPED, progress
from replay.cli.run import ONLY_FOR, SETTINGS_HELP, STAGES, choice, run
from replay.errors import UsageError
from replay.isolate.batch import run_batch
from replay.isolate.limits import Limits
from replay.isolate.result import Result
from replay.targets.batch import AT_ONCE, MAX_AT_ONCE
from replay.targets.job import options_of
from replay.targets.settings import parse_assignments
from replay.verdict import Verdict

BATCH_STAGES = STAGES | {"batch": "replaying (tokens and steps)"}

# What makes sense for one dump only; the budget is asked for anew, since it is that of each dump.
NOT_SHARED = frozenset({"dump", "repeat", "bisect", "timeout", "target"}).union(*ONLY_FOR.values())


@command(epilog=SETTINGS_HELP, params=[param for param in run.params if param.name not in NOT_SHARED])
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@choice("target", "Run the model, or only scheduler and block pool (no weights, no torch).")
@click.option("--recursive", is_flag=True, help="Dumps in folders below PATH, too.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the reports.  [default: reports/ beside the dumps]",
)
@click.option(
    "--at-once",
    type=click.IntRange(1, MAX_AT_ONCE),
    default=AT_ONCE,
    show_default=True,
    help="Dumps replayed side by side. Each needs memory for its KV cache.",
)
@click.option(
    "--timeout",
    callback=as_seconds,
    metavar="DURATION",
    help="Budget for the replayed steps of each dump, e.g. 5s. The time of a shared step is divided by rows.",
)
def batch(
    paths: tuple[Path, ...],
    recursive: bool,
    out: Path | None,
    at_once: int,
    settings: tuple[str, ...],
    expect: str | None,
    timeout: float | None,
    load_timeout: float,
    as_json: bool,
    **options: Any,
) -> int:
    """Replay all dumps at PATH: folders, whose *.pplx files are taken, and files.

    Dumps of the same weights, dtype and thread count share a loaded model, and steps of different dumps are computed
    together. Each report is the one that "pplx-replay run" gives for that dump, to the bit, timings aside. It is
    written as soon as it is ready, as PATH/reports/NAME.json (mode 0600). An older report of ours is replaced; any
    other file in that place stops the batch before it begins.

    Dumps of programs that lie in a folder are left out: "pplx-replay run --target app=..." replays those. A batch of
    nothing else is a usage error.

    A dump that cannot be replayed, or a report that cannot be written, does not stop the others. If the worker dies,
    the dumps it had open are replayed one by one.

    \b
    Exit codes: 0 if every dump reproduced (or came to what --expect names). Otherwise that of the worst dump, in this
    order: 70 our own error or a report that could not be written, 2 unusable option for it, 4 bad dump,
    21 budget spent, 20 inconclusive, 12 diverged, 11 different failure, 10 not reproduced,
    13 reproduced though something else was expected.
    130 if it was interrupted; reports already written stay.

    \b
    Examples:
      pplx-replay batch crashes/
      pplx-replay batch crashes/ more/one.pplx --out reports --timeout 30s
      pplx-replay batch crashes/ --recursive --target schedule --json
      pplx-replay batch fixed/ --set kv.num_blocks=96 --expect not-reproduced
    """
    shared = {**options, "set": parse_assignments(settings)}
    make_absolute(shared, "model", "signature")
    options_of({**shared, "timeout_s": timeout})
    expected = Verdict(expect) if expect else None
    places = batch_files.places(paths, recursive=recursive, out=out)
    given = {os.path.abspath(path) for path in paths}
    entries = [
        Entry(
            dump=place.dump,
            name=_name(place, paths),
            report_file=place.report,
            named=os.path.abspath(place.dump) in given,
        )
        for place in places
    ]
    batch_files.make_folders(places)
    began = time.monotonic()

    def take(index: int, result: Result, alone: str) -> None:
        entry = entries[index]
        entry.report, entry.error, entry.alone = result.report, result.error, alone
        try:
            batch_files.write_report(places[index], entry.document())
        except (OSError, UsageError) as error:  # a full disk, say: the others may have more luck
            entry.unwritten = explain(error).message

    interrupted = False
    with progress() as update:

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "progress":
                update(BATCH_STAGES.get(event["stage"], event["stage"]), event["done"], event["total"])
            elif event["event"] == "alone":
                update(STOPPED)
                several = "dumps go on one by one, in a process each" if event["dumps"] > 1 else "dump goes on alone"
                note(f"{event['dumps']} {several}: {event['why']}")

        try:
            run_batch(
                [str(place.dump.absolute()) for place in places],
                shared,
                on_result=take,
                on_event=on_event,
                at_once=at_once,
                limits=Limits(load_timeout_s=load_timeout, timeout_s=timeout),
            )
        except KeyboardInterrupt:
            interrupted = True
    code = EXIT_INTERRUPTED if interrupted else batch_view.worst(entries, expected)
    seconds = time.monotonic() - began
    if as_json:
        print_json(batch_view.as_document(entries, code=code, interrupted=interrupted, seconds=seconds))
    else:
        batch_view.show(stdout(), entries)
        _summary(entries, interrupted=interrupted, seconds=seconds)
    return code


def _name(place: batch_files.Place, paths: tuple[Path, ...]) -> str:
    """The dump's path below its folder, if there is one folder only."""
    return str(place.name.with_suffix(batch_files.SUFFIX)) if len(paths) == 1 else str(place.dump)


def _summary(entries: list[Entry], *, interrupted: bool, seconds: float) -> None:
    ended = [entry for entry in entries if entry.ended]
    folders = dict.fromkeys(str(entry.report_file.parent) for entry in ended if not entry.unwritten)
    where = f"; reports in {', '.join(folders)}" if folders else ""
    cut = "interrupted: " if interrupted else ""
    if lost := [entry for entry in ended if entry.unwritten]:
        note(f"{len(lost)} reports could not be written, the first of them because: {lost[0].unwritten}")
    programs = sum(entry.of_a_program for entry in ended)
    failed = sum(entry.error is not None for entry in ended) - programs
    without = f", {failed} of them with an error" if failed else ""
    without += f", {programs} left out: they are of programs" if programs else ""
    note(f"{cut}{len(ended)} of {len(entries)} dumps done in {seconds:.1f} s{without}{where}")
