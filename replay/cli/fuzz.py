"""``pplx-replay fuzz``: what fails near a dump that the dump does not show."""

from __future__ import annotations

import secrets
from pathlib import Path

import click
from hypothesis.configuration import set_hypothesis_home_dir

from replay.cli.console import command, json_option, print_json, stdout
from replay.cli.failures import EXIT_INTERRUPTED
from replay.cli.fuzz_view import show, watching
from replay.cli.params import budget_option, device_option, model_option, program_options
from replay.engine.quirks import parse_quirk
from replay.fuzz.fuzz import fuzz as search
from replay.fuzz.options import EXAMPLES, EXAMPLES_FOLDER, FOLDER, FOUND_FOLDER, TARGETS, Options

SEED_BITS = 32


@command()
@click.argument("dumps", metavar="DUMP...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--target",
    default=TARGETS[0],
    show_default=True,
    metavar="schedule|load|inference|app=MODULE:CALLABLE",
    help="What is searched: loads on scheduler and block pool (no weights, no torch); damaged and forged files through "
    "the reader; loads on the model; your program with other results of its tools.",
)
@click.option(
    "--examples", type=click.IntRange(1), default=EXAMPLES, show_default=True, help="End after so many examples."
)
@budget_option("--time", default=None, help="End after so long, shrinking counted, e.g. 60s.", shown="no limit")
@click.option("--seed", type=click.IntRange(0), help="The same seed searches the same.  [default: random]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=FOUND_FOLDER,
    show_default=True,
    help="Folder for what is found: dumps, reports, tests.",
)
@click.option(
    "--quirk",
    "quirks",
    multiple=True,
    metavar="NAME[:PARAMETERS]",
    help="Switch a defect on in every example; may be repeated. pplx-server --help lists them.",
)
@model_option
@device_option
@budget_option(
    "--example-timeout",
    default="10s",
    help="Budget of one example, loading not counted. One that uses it up says nothing.",
)
@budget_option("--shrink-timeout", default="60s", help="Budget for shrinking one failure.")
@program_options
@json_option
def fuzz(
    dumps: tuple[Path, ...],
    target: str,
    examples: int,
    time: float | None,
    seed: int | None,
    out: Path,
    quirks: tuple[str, ...],
    model: Path | None,
    device: str,
    example_timeout: float,
    shrink_timeout: float,
    app_path: tuple[str, ...],
    answers: str,
    as_json: bool,
) -> int:
    """Search the neighbourhood of DUMPs for failures that none of them records.

    Examples are small changes of a dump (lengths around limits, batch mates, times of arrival and abort, prefixes,
    sampling parameters, settings, tool results) and fresh loads of its engine. Who a server would refuse does not come.
    Each new failure, told from others by the identity of its signature, is kept in --out: a dump that a replay has
    shown to reproduce, made as small as it gets by minimise, its report, and a test. A failure that a DUMP records is
    listed as known and not searched for: give a dump that was found to search for what is left.

    In every example properties of our own are checked, too: no block aliased or lost, every request ends, played twice
    is the same, recorded and replayed is the same, a redacted dump keeps the verdicts that it says it keeps; in
    --target load, that a reader gives a valid state or an error of its own. One that does not hold is a bug of
    pplx-replay, and is listed apart.

    Examples run in a process of their own. Those that showed something are kept in .pplx/fuzz/examples of the current
    folder, a Hypothesis example database, and come first the next time. Ctrl-C and the end of --time end the search;
    what was found is on disk then, and after a kill, too.

    \b
    Exit codes: 0 nothing was found that the dumps do not record, 1 a failure was found, 70 a property of pplx-replay
    does not hold (or another error of ours), 2 usage, 4 bad dump, 20 weights or torch are missing, 130 interrupted.

    \b
    Examples:
      pplx-replay fuzz crash.pplx --time 60s
      pplx-replay fuzz crash.pplx .pplx/fuzz/found/*.pplx --examples 5000 --seed 7
      pplx-replay fuzz crash.pplx --target load --json
      pplx-replay fuzz crash.pplx --quirk prefix-leak --quirk prompt-unchecked
      pplx-replay fuzz agent.pplx --target app=agent:answer --app-path src
    """
    set_hypothesis_home_dir(FOLDER / "hypothesis")  # or it would make a folder of its own beside ours
    options = Options(
        dumps=dumps,
        out=out,
        database=EXAMPLES_FOLDER,
        target=target,
        quirks=tuple(parse_quirk(text) for text in quirks),
        examples=examples,
        time_s=time,
        example_s=example_timeout,
        shrink_s=shrink_timeout,
        seed=secrets.randbits(SEED_BITS) if seed is None else seed,
        model=model,
        device=device,
        app_path=app_path,
        answers=answers,
    )
    with watching() as (on_stage, on_found):
        outcome = search(options, on_stage=on_stage, on_found=on_found)
    if as_json:
        print_json(outcome.to_json())
    else:
        show(stdout(), outcome)
    return EXIT_INTERRUPTED if outcome.interrupted else outcome.exit_code
