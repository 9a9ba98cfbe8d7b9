"""``pplx-replay why``: which setting a failure needs, by replays with one thing changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from replay.cli.console import command, json_option, print_json, stdout
from replay.cli.failures import EXIT_INTERRUPTED
from replay.cli.params import budget_option, device_option, load_timeout_option, model_option, program_options
from replay.cli.progress import STOPPED, progress
from replay.cli.why_view import show
from replay.why.options import TARGETS, Options
from replay.why.why import why as ask


@command()
@click.argument("dump", type=click.Path(path_type=Path))
@click.option(
    "--target",
    default=TARGETS[0],
    show_default=True,
    metavar="auto|inference|schedule|app=MODULE:CALLABLE",
    help="On the model; in scheduler and block pool alone (no weights, no torch); or your program. auto is the model "
    "where its weights are here.",
)
@model_option
@device_option
@click.option(
    "--try",
    "extra",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting to try, too, as for run --set; tool.ID.result=JSON is the answer to give to a tool call.",
)
@click.option(
    "--pairs/--no-pairs",
    default=None,
    help="Try two changes together.  [default: only where no single one makes the failure vanish]",
)
@click.option(
    "--numbers/--no-numbers",
    default=True,
    show_default=True,
    help="Noise or corruption: the recorded tokens alone, in their batches, and with stock kernels.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="As recorded, the dump must reproduce N of N.",
)
@budget_option("--time", default="5m", help="Budget of all replays.")
@budget_option(
    "--trial-timeout",
    default="60s",
    help="Budget of one replay, loading not counted. One that uses it up tells nothing.",
)
@load_timeout_option
@program_options
@json_option
def why(
    dump: Path,
    target: str,
    model: Path | None,
    device: str,
    extra: tuple[str, ...],
    pairs: bool | None,
    numbers: bool,
    repeat: int,
    time: float,
    trial_timeout: float,
    load_timeout: float,
    app_path: tuple[str, ...],
    answers: str,
    as_json: bool,
) -> int:
    """Ask which setting the failure of DUMP needs: replay it with one thing changed at a time.

    What is changed follows from the dump: its prefix cache off, its int8 KV in full, more blocks, another policy, one
    request at a time, alone, greedy, in float32, on stock kernels, without its quirks, without recorded KV contents; of
    a program, an answer to each tool call that had none. Where no single change makes the failure vanish, two are made
    together. First the dump as recorded must reproduce N of N. "cannot tell" is never "vanishes".

    Then noise or corruption: the recorded tokens computed for each request alone, in the recorded batches, and there
    with stock kernels; where these part, how close the top two logits were, and whether rounding explains it.

    Replays run in a process of their own that loads the model once. Ctrl-C and the end of --time keep what was tried.

    \b
    Exit codes: 0 there is a table ("complete" in --json says whether all was tried), 10, 11, 12, 20, 21 the dump as
    recorded does not reproduce (see run), 2 usage, 4 bad dump, 70 our own error, 130 interrupted.

    \b
    Examples:
      pplx-replay why crash.pplx
      pplx-replay why crash.pplx --target schedule --pairs
      pplx-replay why crash.pplx --try kv.num_blocks=96 --time 60s --json
      pplx-replay why crash.pplx --target app=agent:answer --try tool.tool-1.result='{"celsius": 21}'
    """
    options = Options(
        dump=dump,
        target=target,
        model=model,
        device=device,
        app_path=app_path,
        answers=answers,
        extra=extra,
        pairs=pairs,
        numbers=numbers,
        repeat=repeat,
        time_s=time,
        trial_s=trial_timeout,
        load_s=load_timeout,
    )
    with progress() as update:
        stage: list[Any] = ["", 0, None]

        def on_stage(what: str, done: int, total: int | None) -> None:
            stage[:] = what, done, total
            update(*stage)

        def on_event(event: dict[str, Any]) -> None:
            """Within a stage of several replays those are counted, else what the one replay has done."""
            if stage[2] is None and event["event"] == "progress":
                update(stage[0], event["done"], event["total"])

        try:
            outcome = ask(options, on_stage=on_stage, on_event=on_event)
        except BaseException:
            update(STOPPED)
            raise
    if as_json:
        print_json(outcome.to_json())
    else:
        show(stdout(), outcome)
    return EXIT_INTERRUPTED if outcome.interrupted else 0
