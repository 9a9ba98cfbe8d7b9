"""Replays a dump with one thing changed at a time, then with two, and says which of them its failure needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from dumps.schema.reader import Dump, open_dump
from replay.isolate.result import Result
from replay.isolate.supervisor import OnEvent
from replay.targets.app.options import AppOptions, app_options, check_tools, is_app
from replay.targets.expected import own_signature
from replay.targets.job import refuse_program
from replay.verdict import Reason, Verdict
from replay.why.change import LIVE_SETTINGS, SCHEDULE, Change, Left, model_key, named
from replay.why.effect import Baseline, Effect, Trial, attributed, trial_of
from replay.why.engine_changes import changes_of, needs_model
from replay.why.options import NotReproduced, Options
from replay.why.outcome import Outcome
from replay.why.program_changes import changes_of_program
from replay.why.trials import TimeIsUp, Trials
from replay.why.words import in_words

OnStage = Callable[[str, int, int | None], None]
"""What is done now, how much of it is done, and of how much; None where that is not known."""

NO_MODEL_HERE = frozenset(
    {
        Reason.WEIGHTS_UNAVAILABLE,
        Reason.MODEL_UNSUPPORTED,
        Reason.ENGINE_NOT_INSTALLED,
        Reason.DEVICE_UNAVAILABLE,
        Reason.TOKENS_ABSENT,
    }
)
"""Why a replay on the model cannot begin, while scheduler and block pool can be replayed."""

OUT_OF_TIME = "the time was used up: more of it is --time"
INTERRUPTED = "it was interrupted"


def why(
    options: Options,
    *,
    on_stage: OnStage = lambda what, done, total: None,
    on_event: OnEvent | None = None,
    trials: Callable[..., Trials] = Trials,
) -> Outcome:
    """Try every change that applies to the dump. The end of the time, or Ctrl-C, keeps what was tried by then.

    ``on_event`` gets the events of the replays. Raises `NotReproduced`, `UsageError` and `DumpError`.
    """
    with trials(options, on_event=on_event) as running:
        return _Why(options, running, on_stage).run()


class _Why:
    def __init__(self, options: Options, trials: Trials, on_stage: OnStage) -> None:
        self._options, self._trials, self._on_stage = options, trials, on_stage
        self._notes: list[str] = []
        self._no_model = "--target schedule has no model"
        self._ended = ""  # why nothing more is tried

    def run(self) -> Outcome:
        began = self._trials.clock()
        with open_dump(self._options.dump) as dump:
            self._check(dump)
        target, baseline = self._baseline()
        # Only a dump that a replay took can be relied on to fit together.
        with open_dump(self._options.dump) as dump:
            changes, left = self._changes(dump)
        if target == "schedule":
            unusable = [change for change in changes if needs_model(change)]
            left += [Left(change.name, self._no_model, applies=True) for change in unusable]
            changes = [change for change in changes if change not in unusable]
        singles = self._try(target, baseline, [(change,) for change in changes], left, "single changes")
        singles = attributed(singles)
        numbers, no_numbers = self._numbers(target)
        pairs: list[Trial] = []
        gone = any(trial.effect is Effect.VANISHES for trial in singles)
        wanted = self._options.pairs if self._options.pairs is not None else not gone
        if wanted:
            pairs = self._try(target, baseline, list(pairs_of(singles)), left, "pairs of changes")
            pairs = attributed([*singles, *pairs])[len(singles) :]
        return Outcome(
            dump=self._options.dump,
            target=target,
            baseline=baseline,
            singles=singles,
            pairs=pairs,
            left=left,
            numbers=numbers,
            no_numbers=no_numbers,
            notes=self._notes,
            complete=not self._ended,
            interrupted=self._ended == INTERRUPTED,
            seconds=self._trials.clock() - began,
            words=in_words(singles, pairs, left, pairs_wanted=wanted),
        )

    def _check(self, dump: Dump) -> None:
        options = self._options
        if own_signature(dump.state) is None:
            raise NotReproduced(
                f"{options.dump} records no failure, so there is nothing to ask why", remedy="pplx-state dump shows it"
            )
        if is_app(options.target):
            check_tools(self._app_options(), dump.state)
        else:
            refuse_program(dump.state, options.target, command="why")

    def _app_options(self) -> AppOptions:
        options = self._options
        return app_options({**options.job(options.target), "set": options.settings})

    def _changes(self, dump: Dump) -> tuple[list[Change], list[Left]]:
        options = self._options
        if is_app(options.target):
            return changes_of_program(dump.state, self._app_options().tool_results)
        changes, left = changes_of(dump)
        known = [dict(change.settings) for change in changes]
        changes += [
            Change(
                settings={key: value},
                subject=key,
                needs=f"{key} as it was",
                includes=frozenset({SCHEDULE} if key in LIVE_SETTINGS else ()),
            )
            for key, value in options.settings.items()
            if {key: value} not in known
        ]
        # By model, so that each is loaded once.
        return sorted(changes, key=lambda change: model_key((change,))), left

    def _baseline(self) -> tuple[str, Baseline]:
        """The target that counts, and the replay of the dump as it is. Raises `NotReproduced`."""
        options = self._options
        target = "inference" if options.target == "auto" else options.target
        began = self._trials.clock()
        self._on_stage(f"replaying as recorded, {options.repeat} of {options.repeat}", 0, None)
        result = self._trials.as_recorded(target)
        report = result.report
        if options.target == "auto" and report is not None and report["reason_code"] in NO_MODEL_HERE:
            problem = report["findings"][-1]["message"] if report["findings"] else report["reason_code"]
            again = self._trials.as_recorded("schedule")
            if _reproduced(again):
                target, result = "schedule", again
                self._no_model = "no model ran"
                self._notes.append(f"on scheduler and block pool alone: {problem}")
        if not _reproduced(result):
            raise self._not_reproduced(result)
        assert result.report is not None
        return target, Baseline(report=result.report, seconds=self._trials.clock() - began)

    def _not_reproduced(self, result: Result) -> NotReproduced:
        what = f"the dump as recorded does not reproduce {self._options.repeat} of {self._options.repeat}"
        if result.report is None:
            assert result.error is not None
            error = result.error
            return NotReproduced(f"{what}: {error.message}", exit_code=error.exit_code, remedy=error.remedy)
        report = result.report
        reason = f" ({report['reason_code']})" if report["reason_code"] else ""
        count = f", reproduced {report['repeat']['reproduced']} of {report['repeat']['n']}"
        first = next((f": {one['message']}" for one in report["findings"] if one["code"] == report["reason_code"]), "")
        remedy = next((one.get("remedy", "") for one in report["findings"] if one["code"] == report["reason_code"]), "")
        verdict = report["verdict"]
        return NotReproduced(f"{what}: {verdict}{reason}{count}{first}", verdict=verdict, remedy=remedy)

    def _try(
        self, target: str, baseline: Baseline, sets: Sequence[tuple[Change, ...]], left: list[Left], stage: str
    ) -> list[Trial]:
        """One replay for each set of changes, until the time is used up or somebody interrupts."""
        tried: list[Trial] = []
        for number, changes in enumerate(sets):
            began = self._trials.clock()
            if not self._ended:
                self._on_stage(stage, number, len(sets))
                result = self._unless_ended(partial(self._trials.changed, target, changes))
                if result is not None:
                    tried.append(trial_of(changes, result, baseline, seconds=self._trials.clock() - began))
                    continue
            left.append(Left(named(changes), self._ended, applies=True))
        if tried and not self._ended:
            self._on_stage(stage, len(sets), len(sets))
        return tried

    def _unless_ended(self, replay: Callable[[], Result]) -> Result | None:
        try:
            return replay()
        except TimeIsUp:
            self._ended = OUT_OF_TIME
        except KeyboardInterrupt:
            self._ended = INTERRUPTED
        return None

    def _numbers(self, target: str) -> tuple[dict[str, Any] | None, str]:
        """Noise or corruption, and why that was not asked."""
        if not self._options.numbers:
            return None, "it was not asked for"
        if target != "inference":
            return None, "a program's numbers are its model's affair" if is_app(target) else self._no_model
        if self._ended:
            return None, self._ended
        self._on_stage("noise or corruption", 0, None)
        result = self._unless_ended(self._trials.numbers)
        if result is None:
            return None, self._ended
        if result.report is None:
            assert result.error is not None
            return None, result.error.message
        if refused := result.report.get("refused"):
            return None, str(refused)
        result.report.pop("environment", None)
        return result.report, ""


def pairs_of(singles: Sequence[Trial]) -> Iterator[tuple[Change, ...]]:
    """The pairs of those changes after which the failure was still there, most promising first: where one of two did
    something, both may do more. Two variants of one change are no pair."""
    left = [
        trial
        for trial in singles
        if trial.effect not in (Effect.VANISHES, Effect.CANNOT_TELL) and not trial.changes[0].alone_only
    ]
    pairs = [(a, b) for a, b in combinations(left, 2) if a.changes[0].subject != b.changes[0].subject]
    pairs.sort(key=lambda pair: (-sum(one.changed_something for one in pair), model_key(_changes(pair))))
    return (_changes(pair) for pair in pairs)


def _changes(pair: tuple[Trial, Trial]) -> tuple[Change, ...]:
    return pair[0].changes + pair[1].changes


def _reproduced(result: Result) -> bool:
    repeat = result.report["repeat"] if result.report is not None else None
    return repeat is not None and bool(repeat["reproduced"] == repeat["n"]) and _verdict(result) == Verdict.REPRODUCED


def _verdict(result: Result) -> str:
    return str(result.report["verdict"]) if result.report is not None else ""
