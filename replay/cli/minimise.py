"""``pplx-replay minimise``: the smallest run that shows the failure of a dump, as a dump and a test."""

from __future__ import annotations

from pathlib import Path

import click

from replay.cli.console import command, json_option, print_json, stdout
from replay.cli.failures import EXIT_INTERRUPTED
from replay.cli.minimise_view import show, watching
from replay.cli.params import as_seconds
from replay.minimise.minimise import minimise as minimise_dump
from replay.minimise.options import TARGETS, Options
from replay.targets.app.options import ANSWERS


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
@click.option(
    "--model", type=click.Path(path_type=Path), help="Folder of safetensors or a .gguf file.  [default: by fingerprint]"
)
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="Where to run the model.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="The dump and the result must reproduce N of N.",
)
@click.option(
    "--time",
    "time_s",
    callback=as_seconds,
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="Budget of the search.",
)
@click.option(
    "--trial-timeout",
    callback=as_seconds,
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="Budget of one trial, loading not counted. A trial that uses it up says no.",
)
@click.option(
    "--load-timeout",
    callback=as_seconds,
    default="120s",
    show_default=True,
    metavar="DURATION",
    help="Budget for loading.",
)
@click.option(
    "--app-path",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Folder to import the program from; may be repeated.  [default: the current one]",
)
@click.option(
    "--answers",
    type=click.Choice(ANSWERS),
    default=ANSWERS[0],
    show_default=True,
    help="A program's model: computed again, or the recorded answers.",
)
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
    time_s: float,
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
        time_s=time_s,
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
