"""``pplx-replay minimise``: the smallest run that shows the failure of a dump, as a dump and a test."""

from __future__ import annotations

from pathlib import Path

import click

from replay.cli.console import command, json_option, print_json, stdout
from replay.cli.failures import EXIT_INTERRUPTED
from replay.cli.minimise_view import show, watching
from replay.cli.params import budget_option, device_option, load_timeout_option, model_option, program_options
from replay.minimise.minimise import minimise as minimise_dump
from replay.minimise.options import TARGETS, Options


@command()
@click.argument("dump", type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="The dump to write.")
@click.option(
    "--target",
    default=TARGETS[0],
    show_default=True,
    metavar="auto|inference|schedule|app=MODULE:CALLABLE",
    help="Where the failure must show: on the model; in scheduler and block pool alone (no weights, no torch); in your "
    "program. auto is the model where its weights are here.",
)
@model_option
@device_option
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="The dump and the result must reproduce N of N.",
)
@budget_option("--time", default="10m", help="Budget of the search.")
@budget_option(
    "--trial-timeout", default="60s", help="Budget of one trial, loading not counted. A trial that uses it up says no."
)
@load_timeout_option
@program_options
@click.option(
    "--resume/--restart",
    default=None,
    help="Insist on going on, or begin afresh.  [default: go on if PATH.work is of this dump and these options]",
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option
def minimise(
    dump: Path,
    out: Path,
    target: str,
    model: Path | None,
    device: str,
    repeat: int,
    time: float,
    trial_timeout: float,
    load_timeout: float,
    app_path: tuple[str, ...],
    answers: str,
    resume: bool | None,
    force: bool,
    as_json: bool,
) -> int:
    """Write the smallest run that shows the same failure as DUMP: a dump, and a pytest file beside it.

    Requests, tokens, steps, blocks, settings and quirks are taken away as long as a run of what is left shows a failure
    of the same identity; another failure that is met is kept in OUT.others and never taken. Trials run in processes of
    their own, first without the model where the failure shows there. What belongs to no run, such as stacks, logs,
    exchanges and tool calls, is taken out of the dump where its replay does not need it; for a program that is all.

    What was found is kept in OUT.work while it goes on: after Ctrl-C, a kill or the end of --time the same command goes
    on. Ctrl-C and --time still write the best that was found. The result is recorded anew and replayed.

    \b
    Exit codes: 0 done (or --time used up: "complete" in --json says which), 10, 11, 12, 20, 21 the dump as recorded
    does not reproduce (see run), 2 usage, 4 bad dump, 70 our own error, 130 interrupted.

    \b
    Examples:
      pplx-replay minimise crash.pplx -o small.pplx
      pplx-replay minimise crash.pplx -o small.pplx --target schedule --time 60s
      pplx-replay minimise crash.pplx -o small.pplx --target app=agent:answer --app-path src
    """
    options = Options(
        dump=dump,
        out=out,
        target=target,
        model=model,
        device=device,
        app_path=app_path,
        answers=answers,
        repeat=repeat,
        time_s=time,
        trial_s=trial_timeout,
        load_s=load_timeout,
        resume=resume,
        force=force,
    )
    with watching() as on_stage:
        outcome = minimise_dump(options, on_stage=on_stage)
    if as_json:
        print_json(outcome.to_json())
    else:
        show(stdout(), outcome)
    return EXIT_INTERRUPTED if outcome.interrupted else 0
