"""``pplx-replay run``: replay a dump in a child process and say whether the same failure came back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from replay.cli.console import EXIT_BISECT_SKIP, command, json_option, print_json, stderr, stdout
from replay.cli.params import as_seconds
from replay.cli.progress import STOPPED, progress
from replay.cli.report_view import show
from replay.isolate.result import Result
from replay.isolate.supervisor import run as run_isolated
from replay.report import bisect_code, exit_code
from replay.targets.job import CHOICES, options_of
from replay.targets.settings import SETTINGS, parse_assignments
from replay.verdict import Verdict

F = TypeVar("F", bound=Callable[..., Any])

GRACE_S = 5.0  # what the child gets beyond its own deadline before it is killed

STAGES = {
    "open": "opening the dump",
    "load": "loading the model",
    "fast-forward": "fast-forward (tokens)",
    "step": "replaying (steps)",
}


def choice(name: str, text: str) -> Callable[[F], F]:
    return click.option(
        f"--{name}", type=click.Choice(CHOICES[name]), default=CHOICES[name][0], show_default=True, help=text
    )


SETTINGS_HELP = "\b\nSettings for --set:\n" + "\n".join(
    f"  {setting.key:<34} {setting.help}" + (f" ({'|'.join(setting.choices)})" if setting.choices else "")
    for setting in SETTINGS.values()
)


@command(epilog=SETTINGS_HELP)
@click.argument("dump", type=click.Path(path_type=Path))
@choice("mode", "strict compares bits, forced feeds the recorded tokens; auto is strict where the platform matches.")
@choice("scope", "The whole recorded engine, or the failing request alone.")
@choice("target", "Run the model, or only scheduler and block pool (no weights, no torch).")
@choice("kernels", "Batch-invariant kernels, or torch's own.")
@choice("schedule", "Follow the recorded schedule, or derive it again and report the first difference.")
@choice("kv", "Compute KV from tokens and check recorded contents against it; use those instead; or do without them.")
@choice("device", "Where to run the model; auto is where the dump was recorded, if that is here.")
@choice("checks", "Check what every step reads, and fill freed blocks with NaN.")
@click.option("--model", type=click.Path(), help="Folder of safetensors or a .gguf file.  [default: by fingerprint]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a setting; they are listed below.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="Replay N times: k of N.")
@click.option("--window", type=click.IntRange(min=1), help="Steps before the failure that run freely.  [default: 32]")
@click.option("--signature", type=click.Path(), help="Look for the failure of another dump, or of a signature in JSON.")
@click.option("--expect", type=click.Choice([v.value for v in Verdict]), help="Exit 0 for this verdict only.")
@click.option("--bisect", is_flag=True, help="Exit codes for git bisect run: 0 gone, 1 reproduced, 125 cannot say.")
@click.option(
    "--timeout",
    callback=as_seconds,
    metavar="DURATION",
    help="Budget for the replayed steps, e.g. 5s; loading does not count.",
)
@click.option(
    "--load-timeout",
    callback=as_seconds,
    default="120s",
    show_default=True,
    metavar="DURATION",
    help="Budget for loading.",
)
@click.option("--salvage", is_flag=True, help="Replay what is left of a torn dump.")
@click.option("--full", is_flag=True, help="Put the answers' token ids into the JSON report.")
@json_option
def run(
    dump: Path,
    settings: tuple[str, ...],
    expect: str | None,
    bisect: bool,
    timeout: float | None,
    load_timeout: float,
    as_json: bool,
    **options: Any,
) -> int:
    """Replay DUMP and say whether the same failure came back.

    \b
    Exit codes: 0 reproduced (or what --expect names), 10 not reproduced, 11 different failure, 12 diverged,
    13 reproduced though something else was expected, 20 inconclusive, 21 budget spent, 2 usage, 4 bad dump,
    70 our own error.

    \b
    Examples:
      pplx-replay run crash.pplx
      pplx-replay run crash.pplx --set kv.num_blocks=96 --expect not-reproduced
      pplx-replay run crash.pplx --target schedule --json
      git bisect run pplx-replay run crash.pplx --bisect
    """
    if bisect and expect:
        raise click.UsageError("--bisect and --expect both set the exit code: give one of them")
    job = {**options, "dump": str(dump.absolute()), "set": parse_assignments(settings), "timeout_s": timeout}
    options_of(job)
    result = _supervise(job, load_timeout, timeout)
    if result.report is None:
        return _failed(result, as_json=as_json, bisect=bisect)
    report = result.report
    if as_json:
        print_json(report)
    else:
        show(stdout(), report)
    verdict = Verdict(report["verdict"])
    return bisect_code(verdict) if bisect else exit_code(verdict, expected=Verdict(expect) if expect else None)


def _supervise(job: dict[str, Any], load_timeout: float, timeout: float | None) -> Result:
    with progress() as update:

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "progress":
                stage = STAGES.get(event["stage"], event["stage"])
                update(stage, event["done"], event["total"])

        result = run_isolated(
            job,
            on_event=on_event,
            load_timeout_s=load_timeout,
            timeout_s=None if timeout is None else timeout + GRACE_S,
        )
        if result.report is None:
            update(STOPPED)
        return result


def _failed(result: Result, *, as_json: bool, bisect: bool) -> int:
    """Report a replay that ended without a report. The child's text is safe to print by now."""
    error = result.error
    assert error is not None
    if as_json:
        print_json({"error": error.as_json() | {"evidence": error.evidence}})
    else:
        console = stderr()
        console.print("error:", style="bold red", end=" ")
        console.print(error.message)
        if error.remedy:
            console.print(error.remedy)
        if error.evidence and error.kind in ("InternalError", "WorkerDied"):
            console.print(error.evidence, style="dim")
    return EXIT_BISECT_SKIP if bisect else error.exit_code
