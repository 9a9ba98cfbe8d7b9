"""``pplx-replay fixture``: keep a dump in a test suite, and check what is kept there."""

from __future__ import annotations

import difflib
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from replay.cli import github
from replay.cli.console import group, json_option, note, print_json, stdout
from replay.cli.failures import EXIT_INTERRUPTED, safe
from replay.cli.fixture_view import Checked, as_document, exit_code_of, list_fixtures, show, show_outcome
from replay.cli.minimise_view import watching
from replay.cli.params import as_seconds
from replay.cli.progress import STOPPED, Progress, progress
from replay.cli.run import SETTINGS_HELP, run
from replay.errors import UsageError
from replay.fixtures.add import add_fixture, copy_dump
from replay.fixtures.check import STEPS_S, Status, check_replay
from replay.fixtures.document import InvalidFixture, State, load_fixture
from replay.fixtures.folder import FOLDER, fixtures_in
from replay.minimise.minimise import minimise as minimise_dump
from replay.minimise.options import Options as MinimiseOptions
from replay.redaction import redact_file
from replay.report import exit_code
from replay.targets.app.options import is_app
from replay.targets.settings import checked, parse_assignments
from replay.verdict import Verdict

# Of `run`: what another machine can be asked for, too, and what does not change which failure is looked for.
KEPT_IN_A_FIXTURE = frozenset(
    {"mode", "scope", "target", "kernels", "schedule", "kv", "device", "checks", "settings", "window"}
    | {"app_path", "answers", "fork", "handlers"}
)

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    show_default=True,
    help="Folder of the fixtures.",
)


@group()
def fixture() -> None:
    """Keep a dump in a test suite: as long as its failure is open it must come back, and never once it is fixed.

    \b
    Examples:
      pplx-replay fixture add crash.pplx --name tool-hang --note "search never answered"
      pplx-replay fixture check
      pytest                       runs them, too: a plugin comes with this package
    """


@fixture.command("add", epilog=SETTINGS_HELP, params=[param for param in run.params if param.name in KEPT_IN_A_FIXTURE])
@click.argument("dump", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--name", required=True, help="Of the fixture: its folder and its tests are called so.")
@click.option(
    "--state",
    type=click.Choice([state.value for state in State]),
    default=State.OPEN.value,
    show_default=True,
    help="open: the failure comes back. fixed: it does not, and must not any more.",
)
@click.option("--note", "text", default="", help="What happened, for people.")
@folder_option
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True),
    help="Folder of small weights to copy into the fixture.  [default: found by fingerprint where it is checked]",
)
@click.option(
    "--redact/--no-redact",
    default=True,
    show_default=True,
    help="Take out secrets and the text that no replay needs, as pplx-state redact does.",
)
@click.option("--minimise", "minimised", is_flag=True, help="Keep the smallest run with this failure: see minimise.")
@click.option("--timeout", callback=as_seconds, metavar="DURATION", help="Budget of its replay, kept in the fixture.")
@click.option("--force", is_flag=True, help="Replace a fixture of this name.")
@json_option
def add(
    dump: Path,
    name: str,
    state: str,
    text: str,
    folder: Path,
    model: Path | None,
    redact: bool,
    minimised: bool,
    timeout: float | None,
    force: bool,
    settings: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Make a fixture of DUMP: a folder with the dump and a fixture.json that says what its replay must come to.

    It is replayed once, with the options given here, which are kept. Where that does not come to what the state says,
    nothing is written. More replays of the same dump, such as a neighbour that must not fail, are added to
    fixture.json by hand. Token ids stay in the dump, unless it went through "pplx-state redact --prompt" before.

    \b
    Exit codes: 0 it was made. Otherwise that of the replay's verdict: 10 not reproduced, 11 different failure,
    12 diverged, 13 reproduced though it is said to be fixed, 20 inconclusive; 21 budget spent, 4 bad dump, 2 usage.

    \b
    Examples:
      pplx-replay fixture add crash.pplx --name kv-overflow --target schedule
      pplx-replay fixture add crash.pplx --name leak --target schedule --minimise
      pplx-replay fixture add crash.pplx --name hang --target app=agent:answer --app-path src --state fixed
    """
    target = folder / name
    with ExitStack() as open_until_done:
        if minimised:
            scratch = open_until_done.enter_context(tempfile.TemporaryDirectory())
            dump = _minimised(dump, Path(scratch) / "small.pplx", model, options)
        update = open_until_done.enter_context(progress())
        outcome = add_fixture(
            dump,
            folder=folder,
            name=name,
            state=State(state),
            note=text,
            options=_options(options, settings, target, timeout),
            model=model,
            force=force,
            prepare=_redacted if redact else copy_dump,
            on_event=_progress(update, f"replaying {name}", 0, None),
        )
        if outcome.status is not Status.PASSED:
            update(STOPPED)
    made = outcome.status is Status.PASSED
    if as_json:
        print_json(as_document([Checked(path=target, outcomes=[outcome])]) | {"made": made})
    elif made:
        stdout().print(f"{safe(str(target))}: {outcome.seen}, as the state {state!r} wants")
        note(f"run it with: pytest, or pplx-replay fixture check {safe(name)}")
    else:
        show_outcome(stdout(), outcome)
        note("nothing was written")
    if outcome.error is not None:
        return outcome.error.exit_code
    return exit_code(Verdict(outcome.seen), expected=outcome.wanted)


def _redacted(source: Path, target: Path) -> None:
    outcome = redact_file(source, target, check=False)  # the replay that follows is the check
    for change in outcome.redacted.changes:
        note(safe(f"{change.what} in the copy: {change.count} x {change.path} ({change.reason})"))


def _minimised(dump: Path, out: Path, model: Path | None, given: dict[str, Any]) -> Path:
    """What of the dump its failure needs. Raises `KeyboardInterrupt` where the search was cut off."""
    options = MinimiseOptions(
        dump=dump,
        out=out,
        target="auto" if given["target"] == "inference" else given["target"],
        model=model,
        device=given["device"],
        app_path=given["app_path"],
        answers=given["answers"],
    )
    with watching() as on_stage:
        outcome = minimise_dump(options, on_stage=on_stage)
    if outcome.interrupted:
        raise KeyboardInterrupt
    note(safe(f"minimised: {outcome.summary}"))
    return outcome.out


def _options(given: dict[str, Any], settings: tuple[str, ...], target: Path, timeout: float | None) -> dict[str, Any]:
    """What was asked for, as a fixture keeps it: without defaults, paths relative to its folder."""
    defaults = {param.name: param.default for param in run.params}
    options = {name: value for name, value in given.items() if value and value != defaults[name]}
    if values := parse_assignments(settings):
        options["set"] = values if is_app(given["target"]) else dict(checked(values).values)
    if is_app(given["target"]):
        options["app_path"] = [os.path.relpath(folder, target) for folder in given["app_path"] or (os.curdir,)]
    if timeout is not None:
        options["timeout_s"] = timeout
    return options


@fixture.command(short_help="Replay fixtures and compare.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@folder_option
@click.option(
    "--allow-inconclusive",
    is_flag=True,
    help="Leave out replays for which this machine has no weights, engine or device. It still fails if none is left.",
)
@click.option("--github", "for_github", is_flag=True, help="Annotations and a job summary for GitHub Actions.")
@click.option(
    "--timeout",
    callback=as_seconds,
    default=f"{STEPS_S:g}s",
    show_default=True,
    metavar="DURATION",
    help="Budget of each replay whose fixture names none.",
)
@json_option
def check(
    names: tuple[str, ...],
    folder: Path,
    allow_inconclusive: bool,
    for_github: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Replay the fixtures, all or those named, and compare with what they say.

    An open failure must come back, a fixed one must not, and each replay must come to its verdict and show its facts.
    A replay that cannot be made here, for want of weights, torch or a device, fails: a check that skips everything
    is green, and says nothing. A fixture may allow for it ("skip_if"), and so does --allow-inconclusive.

    \b
    Exit codes: 0 all is as the fixtures say, 1 something is not, 2 usage or no fixture, 130 interrupted.

    \b
    Examples:
      pplx-replay fixture check
      pplx-replay fixture check kv-overflow nan-block --json
      pplx-replay fixture check --folder tests/fixtures --github
    """
    if for_github and as_json:
        raise click.UsageError("--github prints commands for the runner, and --json one document: give one of them")
    found = [Checked(path=path) for path in _chosen(folder, names)]
    began, interrupted = time.monotonic(), False
    try:
        _check_all(found, timeout)
    except KeyboardInterrupt:
        interrupted = True
    code = EXIT_INTERRUPTED if interrupted else exit_code_of(found, allow_inconclusive=allow_inconclusive)
    seconds = time.monotonic() - began
    if as_json:
        ends = {"exit_code": code, "interrupted": interrupted, "total_s": round(seconds, 3)}
        print_json(as_document(found) | ends)
    elif for_github:
        github.report(found, allow_inconclusive=allow_inconclusive)
    else:
        show(stdout(), found, allow_inconclusive=allow_inconclusive)
    _summary(found, interrupted=interrupted, seconds=seconds)
    return code


@fixture.command("list")
@folder_option
@json_option
def list_all(folder: Path, as_json: bool) -> int:
    """List the fixtures, their states and replays. Nothing is run."""
    found = [Checked(path=path) for path in _chosen(folder, ())]
    for one in found:
        _load(one)
    if as_json:
        print_json(as_document(found))
    else:
        list_fixtures(stdout(), found)
    return exit_code_of(found, run=False)


def _chosen(folder: Path, names: Sequence[str]) -> list[Path]:
    there = {path.name: path for path in fixtures_in(folder)}
    if not there:
        raise UsageError(
            f"no fixture in {os.path.abspath(folder)}",
            remedy="Name their folder with --folder, or make one: pplx-replay fixture add DUMP --name NAME.",
        )
    for name in names:
        if name not in there:
            near = difflib.get_close_matches(name, there, n=3) or sorted(there)[:20]
            raise UsageError(f"there is no fixture {name!r} in {folder}", remedy=f"There are: {', '.join(near)}.")
    return [there[name] for name in dict.fromkeys(names)] or list(there.values())


def _load(one: Checked) -> None:
    try:
        one.fixture = load_fixture(one.path)
    except InvalidFixture as error:
        one.invalid = error


def _check_all(found: Sequence[Checked], timeout: float) -> None:
    """Fill in the outcomes, as they come: on Ctrl-C those that are there stay."""
    for one in found:
        _load(one)
    left = [(one, one.fixture, replay) for one in found if one.fixture for replay in one.fixture.replays]
    with progress() as update:
        for index, (one, loaded, replay) in enumerate(left):
            stage = f"{loaded.name}::{replay.label}"
            update(stage, index, len(left))
            try:
                outcome = check_replay(
                    loaded, replay, on_event=_progress(update, stage, index, len(left)), steps_s=timeout
                )
            except BaseException:
                update(STOPPED)
                raise
            one.outcomes.append(outcome)
            if outcome.status is not Status.PASSED:
                update(STOPPED)
                note(f"{stage}: {outcome.status}")


def _progress(update: Progress, stage: str, done: int, total: int | None) -> Any:
    def on_event(event: dict[str, Any]) -> None:
        update(stage, done, total)

    return on_event


def _summary(found: Sequence[Checked], *, interrupted: bool, seconds: float) -> None:
    outcomes = [outcome for one in found for outcome in one.outcomes]
    counts = [f"{sum(o.status is status for o in outcomes)} {status}" for status in Status]
    counts = [text for text in counts if not text.startswith("0 ")]
    if invalid := sum(one.invalid is not None for one in found):
        counts.append(f"{invalid} cannot be read")
    cut = "interrupted: " if interrupted else ""
    note(f"{cut}{', '.join(counts) or 'nothing was run'} in {seconds:.1f} s")
