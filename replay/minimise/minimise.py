"""From a dump to a minimal one: checks the original, searches, takes out what is left over, records, and replays."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from dumps.schema import state_pb2 as pb
from replay.errors import ReplayError, UsageError
from replay.minimise.climb import Facts
from replay.minimise.options import NotReproduced, Options, ResultNotReproduced, check_places
from replay.minimise.others import Others, others_folder
from replay.minimise.outcome import Outcome, how_it_went
from replay.minimise.pieces import LISTS, Content, Stripping
from replay.minimise.pytest_file import path_of_test, write_test
from replay.minimise.replays import Replays
from replay.minimise.search import Search
from replay.minimise.trial import TRIAL_FUNCTION
from replay.minimise.trials import Bench, Counts, Target, TimeIsUp, Trials
from replay.minimise.words import counted, in_words, settings_in, sizes
from replay.minimise.work import Work, work_folder
from replay.scenario.extract import scenario_of
from replay.scenario.scenario import Scenario
from replay.signature import Signature
from replay.targets.app.options import is_app
from replay.targets.expected import own_signature
from replay.targets.job import refuse_program
from replay.verdict import Reason, Verdict

OnStage = Callable[[str, str, int], None]
"""What is done now, what is left in a search ("" outside of it), and how many trials there were."""


def minimise(
    options: Options,
    *,
    on_stage: OnStage = lambda what, left, trials: None,
    clock: Callable[[], float] = time.monotonic,
    trial_function: str = TRIAL_FUNCTION,
) -> Outcome:
    """Write the smallest dump that shows the same failure, and a test of it beside.

    Ctrl-C and the end of ``time_s`` keep the best that was found: `Outcome.complete` is False then, and the work folder
    stays, so that the same options go on.

    Raises `NotReproduced`, `ResultNotReproduced`, `UsageError` and `DumpError`; then nothing is written, and what was
    found stays in the work folder.
    """
    options.check()
    content = Content.read(options.dump)
    signature = own_signature(content.state)
    if signature is None:
        raise UsageError(f"{options.dump} records no failure, so there is nothing to keep")
    if not is_app(options.target):
        refuse_program(content.state, options.target, command="minimise")
    sha256 = hashlib.sha256(options.dump.read_bytes()).hexdigest()
    folder = work_folder(options.out)
    header = options.header(sha256, asdict(signature.identity))
    work = Work(folder, header, resume=options.resume)
    run = _Run(options, content, signature, work, on_stage, clock, trial_function)
    try:
        check_places(options, ours=work.written)
        outcome = run.minimise()
    except TimeIsUp:
        work.close()
        raise UsageError(
            "the time was used up before anything could be tried", remedy="Give more of it: --time"
        ) from None
    except BaseException:
        work.close()
        if not (work.trials or work.best):
            work.remove()
        raise
    if outcome.complete:
        work.remove()
    else:
        work.written = outcome.sha256
        work.close()
    return outcome


class _Run:
    def __init__(
        self,
        options: Options,
        content: Content,
        signature: Signature,
        work: Work,
        on_stage: OnStage,
        clock: Callable[[], float],
        trial_function: str,
    ) -> None:
        self._options, self._content, self._signature, self._work = options, content, signature, work
        self._on_stage, self._clock, self._trial_function = on_stage, clock, trial_function
        self._began = clock()
        self._deadline = None if options.time_s is None else self._began + options.time_s
        self._counts = Counts()
        self._others = Others(others_folder(options.out))
        self._notes: list[str] = []
        self._interrupted = self._late = False
        self._job: dict[str, Any] = {}
        self._weights: Path | None = None

    def minimise(self) -> Outcome:
        self._choose_target()
        scenario = None if is_app(self._options.target) else self._scenario()
        if scenario is None:
            return self._finish(self._content, self._content, None, None, ())
        with self._trials() as trials:
            search = self._search(trials, "inference" if self._weights is not None else None)
            facts = search.probe(scenario)
            if not facts.steps and self._weights is not None:
                search, facts = self._without_model(trials, scenario, facts.problem)
            if not facts.steps:
                self._notes.append(
                    "requests come and go as recorded, and the failure does not come back: it needs what is in the "
                    "dump, such as KV contents. Nothing but pieces of the dump was taken out"
                )
                return self._finish(self._content, self._content, None, None, ())
            best = self._searched(search, scenario)
            target = facts.targets[-1]
            if best.digest == scenario.digest:  # the record of this very run is there
                return self._finish(self._content, self._content, scenario, best, facts.targets)
            self._stage("recording", in_words(best))
            path = self._work.folder / "recorded.pplx"
            search.record(best, target, path)
            recorded = Content.read(path)
            path.unlink()
        return self._finish(recorded, self._content, scenario, best, facts.targets)

    # The dump as it is

    def _choose_target(self) -> None:
        """Check that it reproduces, on the target that counts, which is found where it was left open."""
        options, state = self._options, self._content.state
        if is_app(options.target):
            self._job = {
                "target": options.target,
                "app_path": [os.path.abspath(folder) for folder in options.app_path or (os.curdir,)],
                "answers": options.answers,
                "model": None if options.model is None else str(options.model.absolute()),
            }
            return self._must_reproduce()
        if options.target != "schedule":
            problem = self._find_weights(state)
            if problem is None:
                return self._must_reproduce(or_else=options.target == "auto")
            if options.target == "inference":
                raise problem
            self._notes.append(f"not confirmed on the engine: {problem}")
        self._job = {"target": "schedule"}
        return self._must_reproduce()

    def _find_weights(self, state: pb.RuntimeState) -> ReplayError | None:
        """Why the model cannot run here; None where it can."""
        from replay.models.locate import locate

        if find_spec("torch") is None:
            return UsageError("torch is not installed", remedy="install the extra: pplx-replay[engine]")
        options, model = self._options, state.model
        beside = options.dump.absolute().parent
        named = None if options.model is None else options.model.absolute()
        try:
            self._weights = locate(
                name=model.name or state.active_model or None,
                fingerprint=model.weights_fingerprint or None,
                explicit=named,
                beside=(beside,),
            )
        except ReplayError as error:
            return error
        if named is None and self._weights == beside / "model":
            named = self._weights  # the result may lie elsewhere
        self._job = {
            "target": "inference",
            "model": None if named is None else str(named),
            "device": options.device,
        }
        return None

    def _must_reproduce(self, *, or_else: bool = False) -> None:
        """Replay the dump as recorded. With ``or_else`` the target schedule is tried where the model cannot say."""
        repeat = self._options.repeat
        self._stage(f"replaying the dump as recorded, {repeat} of {repeat}")
        with self._replays() as replays:
            result = replays.replay(self._options.dump, repeat)
        report = result.report
        if report is not None and report["repeat"]["reproduced"] == repeat:
            return
        if or_else and report is not None and report["verdict"] == Verdict.INCONCLUSIVE:
            self._notes.append(f"not confirmed on the engine: it is {how_it_went(result)} there")
            self._job, self._weights = {"target": "schedule"}, None
            return self._must_reproduce()
        verdict = report["verdict"] if report is not None else ""
        if verdict == Verdict.REPRODUCED:
            verdict = Verdict.NOT_REPRODUCED
        error = NotReproduced(
            f"the dump as recorded does not reproduce {repeat} of {repeat}: {how_it_went(result)}", verdict
        )
        if result.error is not None:
            error.exit_code = result.error.exit_code
        elif report is not None and report["reason_code"] == Reason.NEEDS_INFERENCE:
            error.remedy = "it shows on the model only: --target inference, with the weights"
        raise error

    def _replays(self) -> Replays:
        options = self._options
        return Replays(
            self._job,
            self._work,
            self._counts,
            seconds=options.trial_s,
            load_s=options.load_s,
            deadline=self._deadline,
            clock=self._clock,
        )

    # The run that it is of

    def _scenario(self) -> Scenario | None:
        try:
            scenario = scenario_of(self._content.state)
        except (DumpError, ReplayError) as error:
            self._notes.append(f"nothing but pieces of the dump was taken out: {error}")
            return None
        self._notes += scenario.notes
        if self._weights is not None and not all(visit.has_prompt_ids for visit in scenario.visits):
            self._notes.append("not confirmed on the engine: token ids are not in the dump")
            self._weights, self._job = None, {"target": "schedule"}
            self._must_reproduce()
        return scenario

    def _trials(self) -> Trials:
        options = self._options
        trials = Trials(
            Bench(
                dump=options.dump.absolute(),
                wanted=self._signature.identity,
                model=self._weights,
                device=options.device,
            ),
            self._work,
            trial_s=options.trial_s,
            load_s=options.load_s,
            deadline=self._deadline,
            clock=self._clock,
            job_function=self._trial_function,
        )
        trials.counts = self._counts
        return trials

    def _search(self, trials: Trials, engine: Target | None) -> Search:
        def on_stage(name: str, best: Scenario) -> None:
            self._stage(name, in_words(best))

        return Search(trials, self._work, self._others, engine=engine, on_stage=on_stage)

    def _without_model(self, trials: Trials, scenario: Scenario, why: str) -> tuple[Search, Facts]:
        """A search in scheduler and block pool alone, where the failure comes back there and not on the model."""
        search = self._search(trials, engine=None)
        facts = search.probe(scenario)
        if facts.steps:
            before, self._job = self._job, {"target": "schedule"}
            try:
                self._must_reproduce()
            except NotReproduced:
                self._job = before
                return search, Facts()
            self._notes.append(f"not confirmed on the engine: {why or 'with answers of its own it does not fail'}")
        return search, facts

    def _searched(self, search: Search, scenario: Scenario) -> Scenario:
        found: Scenario | None = None
        with self._until_stopped():
            found = search.run(scenario)
        return found or self._work.best or scenario

    @contextlib.contextmanager
    def _until_stopped(self) -> Iterator[None]:
        """The end of the time, or Ctrl-C, ends what is inside and nothing else."""
        try:
            yield
        except TimeIsUp:
            self._late = True
        except KeyboardInterrupt:
            self._interrupted = True

    # The result

    def _finish(
        self,
        found: Content,
        original: Content,
        start: Scenario | None,
        best: Scenario | None,
        targets: tuple[str, ...],
    ) -> Outcome:
        """Take pieces out of ``found``, write it, replay it."""
        path = self._work.folder / "result.pplx"
        with self._replays() as replays:
            stripping = Stripping(
                found,
                replays.reproduces,
                elements=best is None,
                on_stage=lambda piece: self._stage(f"pieces of the dump: {piece}"),
            )
            if not (self._interrupted or self._late):
                with self._until_stopped():
                    stripping.run()
            result = stripping.result
            result.write(path)
            report = self._must_come_back(replays, path)
        unchanged = result.digest == original.digest
        complete = not (self._interrupted or self._late)
        out = self._options.out
        needs = settings_in(best) if best is not None and complete else []
        outcome = Outcome(
            dump=self._options.dump,
            out=out,
            test=path_of_test(out),
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            signature=self._signature,
            report=report,
            searched=targets,
            confirmed=self._job["target"],
            complete=complete,
            interrupted=self._interrupted,
            already_minimal=unchanged and complete,
            before=_counts(original, start),
            after=_counts(result, best),
            left=in_words(best) if best is not None else _pieces(result),
            needs=needs,
            removed=stripping.removed,
            others=self._others.files,
            counts=self._counts,
            notes=self._notes,
            resumed=self._work.resumed,
            work=None if complete else self._work.folder,
            seconds=self._clock() - self._began,
        )
        os.replace(path, out)
        kind = self._signature.identity.kind + (
            f" ({self._signature.identity.invariant})" * bool(self._signature.identity.invariant)
        )
        write_test(out, self._job, f"{kind}: {outcome.summary}.")
        return outcome

    def _must_come_back(self, replays: Replays, path: Path) -> dict[str, Any]:
        repeat = self._options.repeat
        self._stage(f"replaying the result, {repeat} of {repeat}")
        result = replays.replay(path, repeat)
        report = result.report
        same = (
            report is not None
            and report["signature"] is not None
            and (Signature.from_json(report["signature"]).identity == self._signature.identity)
        )
        if report is None or report["repeat"]["reproduced"] != repeat or not same:
            kept = path.with_name("failed.pplx")
            os.replace(path, kept)
            raise ResultNotReproduced(f"the minimised dump does not reproduce: {how_it_went(result)}; it is {kept}")
        return report

    def _stage(self, what: str, best: str = "") -> None:
        self._on_stage(what, best, self._counts.played)


def _counts(content: Content, scenario: Scenario | None) -> dict[str, int]:
    found = sizes(scenario) if scenario is not None else {}
    found |= {"steps": len(content.state.steps)} if content.state.steps else {}
    found |= {words: len(getattr(content.state, name)) for name, words in LISTS.items() if getattr(content.state, name)}
    return found | {"sections": len(content.sections)}


def _pieces(content: Content) -> str:
    state = content.state
    requests, steps = len(state.requests), len(state.steps)
    parts = [counted(requests, "requests"), counted(steps, "steps")] if requests else []
    parts += [counted(len(getattr(state, name)), words) for name, words in LISTS.items() if getattr(state, name)]
    parts += [f"section {section.kind}" for section in content.sections]
    return ", ".join(parts) or "nothing but the program"
