"""``pplx-replay run``: replay a dump in a child process and say whether the same failure came back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from dumps.text import printable
from replay.cli.console import EXIT_BISECT_SKIP, command, json_option, note, print_json, stderr, stdout
from replay.cli.params import budget_option, load_timeout_option, make_absolute, program_options
from replay.cli.progress import STOPPED, progress
from replay.cli.report_view import show
from replay.errors import UsageError
from replay.isolate.endpoint import run_endpoint
from replay.isolate.limits import Limits
from replay.isolate.program import run_program
from replay.isolate.result import Result
from replay.isolate.supervisor import run as run_isolated
from replay.report import bisect_code, exit_code
from replay.targets.app.options import ANSWERS, app_options, is_app
from replay.targets.endpoint.options import endpoint_options, is_endpoint
from replay.targets.job import CHOICES, options_of
from replay.targets.settings import SETTINGS, parse_assignments
from replay.verdict import Verdict

F = TypeVar("F", bound=Callable[..., Any])

MAX_LINE = 1000  # characters of what a program prints
TOLD_WITH_EVIDENCE = ("InternalError", "WorkerDied", "ProgramNotLoaded", "HandlerFailed")
GRACE_S = 5.0  # what the child gets beyond its own deadline before it is killed

STAGES = {
    "open": "opening the dump",
    "load": "loading the model",
    "fast-forward": "fast-forward (tokens)",
    "step": "replaying (steps)",
    "program": "running the program",
}


def choice(name: str, text: str) -> Callable[[F], F]:
    return click.option(
        f"--{name}", type=click.Choice(CHOICES[name]), default=CHOICES[name][0], show_default=True, help=text
    )


def _target(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if value not in CHOICES["target"] and not is_app(value) and not is_endpoint(value):
        known = ", ".join(CHOICES["target"])
        raise click.BadParameter(f"{value!r} is none of {known}, app=MODULE:CALLABLE, endpoint=URL")
    return value


SETTINGS_HELP = (
    "\b\nSettings for --set:\n"
    + "\n".join(
        f"  {setting.key:<34} {setting.help}" + (f" ({'|'.join(setting.choices)})" if setting.choices else "")
        for setting in SETTINGS.values()
    )
    + "\n  tool.ID.result                     what a tool call gives instead, as JSON (--target app only)"
)


HANDLERS_HELP = (
    "Who answers what was not recorded; takes --fork. A plain function, not async: it gets an Exchange (method, url, "
    "request_headers, request_body) and returns None to leave it, text, bytes, JSON, (status, body), "
    "(status, headers, body), or an Exchange."
)


@command(epilog=SETTINGS_HELP)
@click.argument("dump", type=click.Path(path_type=Path))
@choice("mode", "strict compares bits, forced feeds the recorded tokens; auto is strict where the platform matches.")
@choice("scope", "The whole recorded engine, or the failing request alone.")
@click.option(
    "--target",
    default=CHOICES["target"][0],
    show_default=True,
    callback=_target,
    metavar="inference|schedule|app=MODULE:CALLABLE|endpoint=URL",
    help="Run the model; only scheduler and block pool (no weights, no torch); your program in its recorded world; or "
    "send the recorded requests to a server.",
)
@choice("kernels", "Batch-invariant kernels, or torch's own.")
@choice("schedule", "Follow the recorded schedule, or derive it again and report the first difference.")
@choice("kv", "Compute KV from tokens and check recorded contents against it; use those instead; or do without them.")
@choice("device", "Where to run the model; auto is where the dump was recorded, if that is here.")
@choice("checks", "Check what every step reads, and fill freed blocks with NaN.")
@click.option("--model", type=click.Path(), help="Folder of safetensors or a .gguf file.  [default: by fingerprint]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a setting; they are listed below.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="Replay N times: k of N.")
@program_options
@click.option("--fork", is_flag=True, help="Let a program run past its recorded world; takes --handlers.")
@click.option("--handlers", metavar="MODULE:FUNCTION", help=HANDLERS_HELP)
@click.option("--api-key-env", metavar="NAME", help="Variable with the endpoint's API key.  [default: OPENAI_API_KEY]")
@click.option("--proxy", metavar="URL", help="Proxy to reach the endpoint by; those of the environment are not used.")
@click.option("--window", type=click.IntRange(min=1), help="Steps before the failure that run freely.  [default: 32]")
@click.option("--signature", type=click.Path(), help="Look for the failure of another dump, or of a signature in JSON.")
@click.option("--expect", type=click.Choice([v.value for v in Verdict]), help="Exit 0 for this verdict only.")
@click.option("--bisect", is_flag=True, help="Exit codes for git bisect run: 0 gone, 1 reproduced, 125 cannot say.")
@budget_option(
    "--timeout",
    default=None,
    help="Budget for the replayed steps or the program, e.g. 5s; loading does not count. Without it a program may "
    "run for ever.",
)
@load_timeout_option
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
      pplx-replay run crash.pplx --target app=agent:answer --set tool.tool-1.result='{"celsius": 21}'
    """
    if bisect and expect:
        raise click.UsageError("--bisect and --expect both set the exit code: give one of them")
    job = {**options, "dump": str(dump.absolute()), "set": parse_assignments(settings), "timeout_s": timeout}
    _check(job)
    result = _supervise(job, load_timeout, timeout)
    if result.report is None:
        return _failed(result, is_program=is_app(job["target"]), as_json=as_json, bisect=bisect)
    report = result.report
    for line in report.get("output", "").splitlines():
        note(f"| {printable(line, MAX_LINE)}")
    if as_json:
        print_json(report)
    else:
        show(stdout(), report)
    verdict = Verdict(report["verdict"])
    return bisect_code(verdict) if bisect else exit_code(verdict, expected=Verdict(expect) if expect else None)


ONLY_FOR: dict[str, dict[str, Any]] = {
    "app=MODULE:CALLABLE": {"app_path": (), "answers": ANSWERS[0], "fork": False, "handlers": None},
    "endpoint=URL": {"api_key_env": None, "proxy": None},
}
"""Options that one target alone has, with the values that ask for nothing."""


def _check(job: dict[str, Any]) -> None:
    """Complete the job for its target, or raise `UsageError`: no option is ignored silently."""
    target = job["target"]
    for owner, options in ONLY_FOR.items():
        if target.partition("=")[0] == owner.partition("=")[0]:
            continue
        for name, neutral in options.items():
            if job.pop(name) != neutral:
                option = name.replace("_", "-")
                raise UsageError(
                    f"--{option} changes nothing in --target {target}", remedy=f"it is for --target {owner}"
                )
    # A worker stands in a folder of its own. What an endpoint's model is called is no path.
    make_absolute(job, *(("signature",) if is_endpoint(target) else ("model", "signature")))
    if is_app(target):
        job["app_path"] = [os.path.abspath(folder) for folder in job["app_path"] or (os.curdir,)]
        app_options(job)
    elif is_endpoint(target):
        endpoint_options(job)
    else:
        options_of(job)


def _supervise(job: dict[str, Any], load_timeout: float, timeout: float | None) -> Result:
    with progress() as update:

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "progress":
                stage = STAGES.get(event["stage"], event["stage"])
                if "run" in event:
                    stage += f", run {event['run']} of {job['repeat']}"
                update(stage, event["done"], event["total"])

        target = job["target"]
        is_program = is_app(target)
        isolated = run_program if is_program else run_endpoint if is_endpoint(target) else run_isolated
        # An engine looks at its own budget between two steps; a program does not.
        timeout_s = None if timeout is None else timeout + (0.0 if is_program else GRACE_S)
        result = isolated(job, on_event=on_event, limits=Limits(load_timeout_s=load_timeout, timeout_s=timeout_s))
        if result.report is None:
            update(STOPPED)
        return result


def _failed(result: Result, *, is_program: bool, as_json: bool, bisect: bool) -> int:
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
        if error.evidence and (error.kind in TOLD_WITH_EVIDENCE or (is_program and error.kind == "BudgetSpent")):
            console.print(error.evidence, style="dim")
    return EXIT_BISECT_SKIP if bisect else error.exit_code
