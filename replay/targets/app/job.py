"""One replay of a recorded program, from a JSON-able description to a JSON-able report. Runs in a torch-free child."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter  # bound here: a report may be made while the program's own clock is in the module's place
from typing import Any, Protocol

from dumps.program_dumps import holds_a_program, was_redacted, without_its_world
from dumps.record.command_line import hides_a_secret
from dumps.record.seams import current
from dumps.record.seams.json_text import is_whole
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump, open_dump
from dumps.text import printable
from replay.engine.failure import FailureKind
from replay.report import finding
from replay.runtime.entropy import hash_seed_finding
from replay.runtime.env import Env, load_env
from replay.runtime.own_process import OwnProcess
from replay.runtime.variables import may_be_set
from replay.signature import Signature
from replay.targets.app.answers import ReplayedAnswers
from replay.targets.app.around import NOTHING_KNOWN, around
from replay.targets.app.conclude import conclude
from replay.targets.app.cuts import Cuts
from replay.targets.app.entry import arguments_of, call, defaults_used, load_entry
from replay.targets.app.fork import ForkHandlers
from replay.targets.app.lost import lost_failures
from replay.targets.app.masked_values import REMEDY as MASKED_REMEDY
from replay.targets.app.masked_values import masked_values
from replay.targets.app.options import AppOptions, app_options, check_tools
from replay.targets.app.other_entry import other_entry
from replay.targets.app.outcome import Outcome, outcome_of
from replay.targets.app.output import kept_output
from replay.targets.app.process_end import on_process_end
from replay.targets.app.report import app_report
from replay.targets.app.served import KINDS as SERVED_KINDS
from replay.targets.app.served import ServedReplay
from replay.targets.app.sought import Conclusion, Sought
from replay.targets.expected import expected_signature
from replay.verdict import Decision, Reason, Verdict

_SHOWN = frozenset({"TMPDIR"})
"""Variables that a worker has its own of; `OwnProcess` shows the program the recorded ones."""


class Channel(Protocol):
    """The way to the supervisor, see `replay.isolate.worker.Channel`."""

    def __call__(self, event: dict[str, Any]) -> None: ...

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]: ...

    def on_refusal(self, listener: Callable[[str], None]) -> None: ...

    def end(self, report: Mapping[str, Any]) -> None: ...


def run_program(job: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Replay the program once and report. The first run of a job may ask to be run again, see `_restart`.

    Raises `DumpError` and `UsageError`; everything that the program does is a result.
    """
    options = app_options(job)
    began = perf_counter()
    channel({"event": "progress", "stage": "open", "done": 0, "total": None})
    with open_dump(Path(job["dump"]), salvage=options.salvage) as dump:
        missing = _missing(dump.state)
        if missing is None and not job.get("restarted") and (variables := _differing_variables(dump.state)):
            return {"restart": variables}
        check_tools(options, dump.state)
        expected = expected_signature(dump.state, options.signature)
        replay = _Replay(dump, options, expected, channel, began)
        return replay.report() if missing is None else replay.inconclusive(*missing)


def _differing_variables(state: pb.RuntimeState) -> dict[str, str]:
    """The environment variables that the program was recorded with and this process was not started with."""
    program = state.program
    wanted = {one.key: one.value for one in program.environment if one.key not in _SHOWN}
    seed = program.hash_seed
    # Which seed a random one was nobody knows; a fixed one at least makes two replays equal.
    wanted["PYTHONHASHSEED"] = seed if seed.isdigit() else "0"
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


def _left_out(state: pb.RuntimeState) -> str:
    """What is to be said of variables that this process was not started with, for their size; "" without any."""
    names = [
        one.key for one in state.program.environment if one.key not in os.environ and may_be_set(one.key, one.value)
    ]
    if not names:
        return ""
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    return (
        f"{len(names)} environment variables are too large, alone or together, to start a process with: "
        f"{', '.join(printable(name, 80) for name in names[:5])}{more}. The program had them, but its modules not "
        "while they were imported"
    )


_HIDDEN_ARGUMENT = "the program was given a secret on its command line; the replay gives it REMOVED in that place"
_HIDDEN_ARGUMENT_REMEDY = "where the program depends on it, give it by an environment variable or a file, and record"


class _Replay:
    def __init__(
        self, dump: Dump, options: AppOptions, expected: Signature | None, channel: Channel, began: float
    ) -> None:
        self._dump, self._options, self._expected, self._channel = dump, options, expected, channel
        self._began = began
        self._left_out = ""
        self._model = ReplayedAnswers(channel.ask) if options.answers == "replayed" else None

    def report(self) -> dict[str, Any]:
        options, state = self._options, self._dump.state
        self._left_out = _left_out(state)
        sys.argv = [options.entry.partition(":")[0]]  # ours would be read as the program's, where that is not recorded
        process = OwnProcess.of(state)
        with kept_output() as output, contextlib.ExitStack() as stack:
            stack.callback(process.install())
            with _without_recordings(), process.loading():
                function = load_entry(options.entry, options.app_path)
            served = ServedReplay(state, function) if state.program.kind in SERVED_KINDS else None
            arguments = arguments_of(state.program, function) if served is None else {}
            fork = ForkHandlers(load_entry(options.handlers, (), "handlers"), self._model) if options.handlers else None
            env = load_env(state, model=self._model, fork=fork, tool_results=options.tool_results)
            loaded = perf_counter()
            self._channel({"event": "step-started"})
            self._channel({"event": "progress", "stage": "program", "done": 0, "total": None})
            cuts = Cuts(lambda: not env.refusals)
            self._channel.on_refusal(cuts)

            def report_of(outcome: Outcome) -> dict[str, Any]:
                if fork is not None and fork.problem is not None:
                    raise fork.problem
                sought = Sought(
                    state=state,
                    signature=self._expected,
                    modified=bool(options.tool_results or options.handlers),
                    tools_given=bool(options.tool_results),
                    foreign=options.signature is not None,
                )
                ended = perf_counter()
                if served is not None:
                    conclusion = served.conclude(sought, env, outcome)
                else:
                    conclusion = conclude(
                        sought,
                        env,
                        outcome,
                        lost=lost,
                        cut=cuts.first,
                        asked_nothing=env.asked_nothing,
                        alarm_unheard=env.alarms.unheard(state.exceptions),
                    )
                    if defaults_used(state.program, function):
                        message = "the recording says nothing of arguments; defaults were used"
                        conclusion.findings.append(
                            finding(
                                "defaults-used", message, remedy="record with rec.call(function, ...), which notes them"
                            )
                        )
                undecided = conclusion.decision.verdict in (Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE)
                if undecided and (said := other_entry(state.program, options.entry, function)):
                    conclusion.findings.append(finding("another-entry", said))
                if cuts.first and conclusion.decision.verdict is Verdict.REPRODUCED:
                    message = f"the program was refused {cuts.first}, and failed as it did when recorded all the same"
                    conclusion.findings.append(finding("refused", message))
                if outcome.failure is not None and outcome.failure.kind is FailureKind.PROCESS_DEATH:
                    conclusion.findings.insert(0, finding("process-ended", outcome.failure.message))
                world = env.counts() | (served.counts() if served is not None else {})
                return self._report(
                    conclusion,
                    env,
                    world=world | {"ended": outcome.ended, "model_answers": self._model.answered if self._model else 0},
                    output=output.tail(),
                    around=around(env, outcome.error) if conclusion.failure is not None else NOTHING_KNOWN,
                    timings={
                        "load_s": loaded - self._began,
                        "step_s": ended - loaded,
                        "virtual_s": env.elapsed_s if served is None else served.elapsed_s,
                    },
                )

            def left(outcome: Outcome) -> None:
                if served is not None:
                    served.end(env, outcome)
                self._channel.end(report_of(outcome))

            with env, lost_failures(lambda: None if cuts.first or env.refusals else env.world_step) as lost:
                stack.callback(on_process_end(left))
                outcome = served.run(env) if served is not None else _run(function, arguments)
        return report_of(outcome)

    def inconclusive(self, reason: Reason, message: str, remedy: str) -> dict[str, Any]:
        """The report of a replay that cannot begin."""
        problem = finding(reason.value, message, remedy=remedy)
        return self._report(Conclusion(Decision(Verdict.INCONCLUSIVE, reason), findings=[problem]), None)

    def _report(
        self,
        conclusion: Conclusion,
        env: Env | None,
        *,
        world: Mapping[str, Any] | None = None,
        output: str = "",
        around: Mapping[str, Any] = NOTHING_KNOWN,
        timings: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        options, divergence = self._options, conclusion.divergence
        findings = list(conclusion.findings)
        if env is not None:
            told = [found["message"] for found in findings]
            findings += [finding(o.code, o.message, **o.facts) for o in env.findings() if not _is_told(o.message, told)]
            findings += self._model_findings()
            program = self._dump.state.program
            if (divergence is not None or _says_another_thing(conclusion)) and (said := hash_seed_finding(program)):
                findings.append(finding("hash-seed", said))
            if conclusion.decision.verdict is not Verdict.REPRODUCED and hides_a_secret(program.argv):
                findings.append(finding("argv-secret", _HIDDEN_ARGUMENT, remedy=_HIDDEN_ARGUMENT_REMEDY))
            if self._left_out:
                findings.append(finding("variables-left-out", self._left_out))
            if conclusion.decision.verdict is not Verdict.REPRODUCED and (said := masked_values(self._read(env))):
                findings.append(finding("masked-values", said, remedy=MASKED_REMEDY))
        return app_report(
            self._dump,
            conclusion.decision,
            expected=self._expected,
            failure=conclusion.failure,
            divergence=divergence.to_json() if divergence else None,
            world=world or {},
            output=output,
            around=around,
            settings={f"tool.{name}.result": value for name, value in options.tool_results.items()},
            findings=findings,
            timings={**(timings or {}), "total_s": perf_counter() - self._began},
            environment=_environment(self._dump.state),
            mode="none" if env is None else "fork" if options.handlers else "strict",
            target=f"app={options.entry}",
        )

    def _read(self, env: Env) -> list[pb.Exchange]:
        """The recorded exchanges that the program asked for again."""
        left = {one.id for one in env.left_over()}
        return [one for one in self._dump.state.exchanges if one.direction == "out" and one.id not in left]

    def _model_findings(self) -> list[dict[str, Any]]:
        if self._model is None:
            return [finding("recorded-answers", "the model's answers are the recorded ones; nothing was computed")]
        return [
            finding(
                "recorded-answers",
                f"an answer of the model is the recorded one, not computed: {problem['message']}",
                remedy=problem["remedy"],
            )
            for problem in self._model.problems
        ]


def _says_another_thing(conclusion: Conclusion) -> bool:
    """Whether the failure came, with another message: numbers in it, or the order of a set."""
    match = conclusion.decision.match
    words = match.get("identity.exception_type", False) and not match.get("identity.message", True)
    return words or any(one["code"] == "message-differs" for one in conclusion.findings)


def _is_told(message: str, told: Sequence[str]) -> bool:
    """Whether a finding says it already: a file that nobody recorded is named where the verdict is explained."""
    named = message.removesuffix(" was not recorded.")
    return message in told or (named != message and any(named in one for one in told))


@contextlib.contextmanager
def _without_recordings() -> Iterator[None]:
    """Recordings that a module begins while it is imported are inert, as they are once its world is in place."""
    end = current.begin_replay()
    try:
        yield
    finally:
        end()


def _run(function: Any, arguments: dict[str, Any]) -> Outcome:
    try:
        return Outcome(ended="returned", value=call(function, arguments))
    except BaseException as error:  # SystemExit and KeyboardInterrupt are ways in which programs end, too
        return outcome_of(error)


def _missing(state: pb.RuntimeState) -> tuple[Reason, str, str] | None:
    """What a program's replay needs and this dump does not have."""
    if not state.HasField("program") and holds_a_program(state):
        return (
            Reason.PROGRAM_ABSENT,
            "what the dump held of the program is lost, how it was entered above all: this is the rest of a torn file",
            "copy the dump again from where it was written; pplx-state dump shows what is left",
        )
    if not state.HasField("program"):
        return (
            Reason.PROGRAM_ABSENT,
            "the dump holds no recorded program: it is that of an engine",
            "record the program with dumps.record.program.recording; --target inference replays the engine",
        )
    if state.manifest.record_level != "full":
        return (
            Reason.PROGRAM_SHAPE_ONLY,
            without_its_world(state, state.manifest.record_level),
            "replay the dump that this is a copy of, or redact that without --prompt"
            if was_redacted(state)
            else 'record it with recording(..., level="full")',
        )
    if not _whole(state.program.arguments_json):
        return (
            Reason.PROGRAM_SHAPE_ONLY,
            "the arguments that the program was called with are not in the dump, or not all of them",
            "give rec.call(...) arguments that JSON can hold, within the recording's limits",
        )
    return None


def _whole(text: str) -> bool:
    try:
        arguments = json.loads(text or "{}")
        return isinstance(arguments, dict) and is_whole(arguments)
    except (ValueError, RecursionError):
        return False


def _environment(state: pb.RuntimeState) -> dict[str, Any]:
    """``not_set``: recorded variables that this process was not given, see `replay.isolate.environment.added`."""
    facts: dict[str, Any] = {
        "device": "none",
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    if not_set := sorted(set(_differing_variables(state)) - {"PYTHONHASHSEED"}):
        facts["not_set"] = not_set
    return facts
