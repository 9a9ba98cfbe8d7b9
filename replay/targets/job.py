"""One replay job, from a JSON-able description to a JSON-able report. Runs in the child process."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump, open_dump
from dumps.text import printable
from replay.engine.failure import FailureKind
from replay.engine.quirks import KINDS
from replay.errors import (
    ENGINE_PACKAGES,
    DeviceUnavailable,
    EngineNotInstalled,
    ModelUnavailable,
    ProgramDump,
    UnsupportedModel,
    UsageError,
)
from replay.report import finding
from replay.signature import Signature
from replay.targets.admit import admit, told
from replay.targets.answers_changed import answers_changed
from replay.targets.drive import Deadline, Emit
from replay.targets.expected import expected_signature, own_signature
from replay.targets.host import ALONE, Host
from replay.targets.narrow import only_request
from replay.targets.quirks import unknown_quirks
from replay.targets.rebuild import Rebuilt, rebuild
from replay.targets.result import Run, first_divergence
from replay.targets.schedule import last_step, run_schedule
from replay.targets.settings import NEEDS_MODEL, SETTINGS, Overrides, checked
from replay.targets.standstill import is_stall, until_standstill
from replay.targets.summary import report_of
from replay.verdict import Decision, Evidence, Reason, Verdict, decide

MAX_REPEAT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a job asks for, checked. Field names are those of the command's options."""

    mode: Literal["auto", "strict", "forced"] = "auto"
    scope: Literal["engine", "request"] = "engine"
    target: Literal["inference", "schedule"] = "inference"
    kernels: Literal["exact", "stock"] = "exact"
    schedule: Literal["recorded", "live"] = "recorded"
    kv: Literal["auto", "restore", "recompute"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    model: str | None = None
    overrides: Overrides = field(default_factory=Overrides)
    repeat: int = 1
    timeout_s: float | None = None
    window: int | None = None
    full: bool = False
    signature: str | None = None
    salvage: bool = False
    checks: Literal["on", "off"] = "on"


CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("auto", "strict", "forced"),
    "scope": ("engine", "request"),
    "target": ("inference", "schedule"),
    "kernels": ("exact", "stock"),
    "schedule": ("recorded", "live"),
    "kv": ("auto", "restore", "recompute"),
    "device": ("auto", "cpu", "cuda"),
    "checks": ("on", "off"),
}


CANNOT_BEGIN = {
    ModelUnavailable: Reason.WEIGHTS_UNAVAILABLE,
    UnsupportedModel: Reason.MODEL_UNSUPPORTED,
    EngineNotInstalled: Reason.ENGINE_NOT_INSTALLED,
    DeviceUnavailable: Reason.DEVICE_UNAVAILABLE,
}


def options_of(job: Mapping[str, Any]) -> Options:
    """Check a job's options. Raises `UsageError` that names the option and what it wants."""
    values: dict[str, Any] = {}
    for name, choices in CHOICES.items():
        value = job.get(name, choices[0])
        if value not in choices:
            raise UsageError(f"{name}: wants {' or '.join(choices)}, got {value!r}")
        values[name] = value
    for name in ("full", "salvage"):
        values[name] = job.get(name, False)
        if not isinstance(values[name], bool):
            raise UsageError(f"{name}: wants true or false, got {values[name]!r}")
    for name in ("model", "signature"):
        values[name] = job.get(name)
        if values[name] is not None and not isinstance(values[name], str):
            raise UsageError(f"{name}: wants text, got {values[name]!r}")
    repeat, window, timeout = job.get("repeat", 1), job.get("window"), job.get("timeout_s")
    if type(repeat) is not int or not 1 <= repeat <= MAX_REPEAT:
        raise UsageError(f"repeat: wants an integer from 1 to {MAX_REPEAT}, got {repeat!r}")
    if window is not None and (type(window) is not int or window < 1):
        raise UsageError(f"window: wants a positive number of steps, got {window!r}")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        raise UsageError(f"timeout: wants a positive number of seconds, got {timeout!r}")
    settings = job.get("set", {})
    if not isinstance(settings, Mapping):
        raise UsageError(f"set: wants an object of keys and values, got {settings!r}")
    overrides = checked(settings)
    if values["kv"] == "restore":
        _check_restore(values, overrides)
    if values["target"] == "schedule" and (idle := [key for key in overrides.values if key in NEEDS_MODEL]):
        raise UsageError(
            f"--set {idle[0]} changes nothing in --target schedule, which has no model",
            remedy="use --target inference",
        )
    idle = [name for name in ("kernels", "kv", "device", "model") if values[name] != CHOICES.get(name, (None,))[0]]
    if values["target"] == "schedule" and idle:
        raise UsageError(
            f"--{idle[0]} changes nothing in --target schedule, which has no model",
            remedy=f"leave it out, or use --target inference; given: {', '.join(idle)}",
        )
    return Options(**values, repeat=repeat, window=window, timeout_s=timeout, overrides=overrides)


def _check_restore(values: Mapping[str, Any], overrides: Overrides) -> None:
    """Recorded contents are those of the recorded run, at its failing step."""
    changing = [key for key in overrides.values if SETTINGS[key].changes_tokens]
    changing += [f"quirk.{name}" for name in overrides.quirks_off if overrides.leaves_damage_out]
    other = f"--set {changing[0]}" if changing else ""
    other = "--scope request" if values["scope"] == "request" else other
    other = "--schedule live" if values["schedule"] == "live" else other
    if other:
        raise UsageError(
            f"kv: restore goes to the failing step on the recorded contents, and {other} makes another run up to it",
            remedy="Leave out one of the two.",
        )


def run_job(job: Mapping[str, Any], emit: Emit, host: Host = ALONE) -> dict[str, Any]:
    """Open the dump, replay it ``repeat`` times, decide, report. ``host`` differs where many replays share a model.

    Missing weights, tokens, steps or devices make an inconclusive report, not an error. Raises `DumpError`,
    `UsageError`, `BudgetSpent`.
    """
    options = options_of(job)
    began = host.clock()
    emit({"event": "progress", "stage": "open", "done": 0, "total": None})
    with open_dump(Path(job["dump"]), salvage=options.salvage) as dump:
        refuse_program(dump.state, options.target)
        expected = expected_signature(dump.state, options.signature)
        job_run = _Job(dump, options, expected, emit, host)
        try:
            runs = [job_run.once() for _ in range(options.repeat)]
        except tuple(CANNOT_BEGIN) as error:
            reason = next(reason for kind, reason in CANNOT_BEGIN.items() if isinstance(error, kind))
            problem = finding(reason.value, str(error), remedy=error.remedy)
            runs = [(job_run.empty(reason, problem), Decision(Verdict.INCONCLUSIVE, reason))]
        run, decision = next(((r, d) for r, d in runs if d.verdict is Verdict.REPRODUCED), runs[0])
        verdicts = [d.verdict for _, d in runs]
        run.findings[:0] = job_run.findings()
        if len(set(verdicts)) > 1:
            counted = ", ".join(f"{verdicts.count(v)} x {v.value}" for v in dict.fromkeys(verdicts))
            run.findings.append(
                finding("not-deterministic", f"{len(verdicts)} replays of one dump disagree: {counted}")
            )
        run.timings["total_s"] = host.clock() - began
        return report_of(
            dump,
            run,
            decision,
            expected=expected,
            target=options.target,
            scope=options.scope,
            full=options.full,
            settings=dict(options.overrides.values),
            repeat={"n": options.repeat, "reproduced": verdicts.count(Verdict.REPRODUCED)},
            environment=_environment(),
        )


def program_target(state: pb.RuntimeState) -> str | None:
    """The --target of a dump that is a program's, and so has no engine to replay. None for an engine's."""
    if not state.HasField("program") or state.steps or state.requests:
        return None
    return f"app={printable(state.program.entry, 100) or 'MODULE:CALLABLE'}"


def refuse_program(state: pb.RuntimeState, target: str, *, command: str = "run") -> None:
    """Raises `ProgramDump`, since such a dump has no engine to replay."""
    if (program := program_target(state)) is not None:
        raise ProgramDump(
            f"the dump is that of a program, and --target {target} replays an engine",
            remedy=f"run your program in its recorded world: pplx-replay {command} DUMP --target {program}",
        )


def _stand_ins(state: pb.RuntimeState, rebuilt: Rebuilt) -> bool:
    """Whether the recorded answers only stand for those of a model, as in what minimise and fuzz make without one."""
    if not any(output.tokens for output in rebuilt.outputs.values()):
        return False
    return any(one.path == "requests[].output_token_ids" and one.grade == pb.SYNTHESISED for one in state.ledger)


class _Job:
    """The dump and its options, with the model loaded once for all repetitions."""

    def __init__(self, dump: Dump, options: Options, expected: Signature | None, emit: Emit, host: Host) -> None:
        self._dump, self._options, self._expected, self._emit, self._host = dump, options, expected, emit, host
        # Where to replay to is the dump's own matter, whichever failure is looked for.
        self._own = own_signature(dump.state)
        self._loaded: Any = None
        self._problems = admit(dump.state)

    def once(self) -> tuple[Run, Decision]:
        rebuilt = rebuild(self._dump.state, self._options.overrides)
        if self._options.scope == "request":
            rebuilt = only_request(rebuilt, self._own)
        elif self._own is not None and is_stall(self._own):
            rebuilt = until_standstill(rebuilt, self._dump.state, self._own)
        run = self._run(rebuilt)
        if self._modified and self._draws_answers(run):
            run.answers = answers_changed(run.requests, run.outputs)
        if not self._modified and self._options.schedule == "recorded":
            # A standstill comes after its step, any other failure in it.
            before = last_step(rebuilt, self._own) + rebuilt.stalls
            run.divergence = first_divergence(run.divergence, run.difference, before=before)
        evidence = Evidence(
            seen=[Signature.of(failure) for failure in run.failures],
            divergence=run.divergence,
            modified=self._modified,
            foreign=self._options.signature is not None,
            missing=run.missing or self._beyond_target() or self._beyond_record(rebuilt) or self._alone(run),
        )
        return run, decide(self._expected, evidence)

    def _beyond_target(self) -> Reason:
        """What the chosen target can never show."""
        kind = self._expected.identity.kind if self._expected else None
        if self._options.checks == "off" and (kind == FailureKind.CONTAMINATION or self._spoilt):
            return Reason.NEEDS_CHECKS
        failures = self._dump.state.failures
        in_sampler = self._expected == self._own and failures and failures[-1].HasField("non_finite")
        shown_by_numbers = kind == FailureKind.NON_FINITE or in_sampler
        return Reason.NEEDS_INFERENCE if shown_by_numbers and self._options.target == "schedule" else Reason.NONE

    @property
    def _spoilt(self) -> bool:
        """Whether the NaN that checks put into freed blocks may have been read when this was recorded."""
        names = {quirk.name for quirk in self._dump.state.quirks}
        mixing = {kind.name for kind in KINDS.values() if kind.mixes_blocks}
        return self._dump.state.engine.checks and not names.isdisjoint(mixing)

    def _alone(self, run: Run) -> Reason:
        """Whether the failing request ran without those that had taken its blocks, and so did not fail."""
        identity = self._own.identity if self._own is not None else None
        others = identity is not None and (
            identity.invariant == "kv-pool-exhausted" or identity.kind == FailureKind.CONTAMINATION
        )
        return Reason.RAN_ALONE if self._options.scope == "request" and others and not run.failures else Reason.NONE

    def _beyond_record(self, rebuilt: Rebuilt) -> Reason:
        """Whether the steps that were kept end before the failure, or begin after it."""
        step = self._own.location.step if self._own else None
        if is_stall(self._own) and self._options.scope == "engine":
            return Reason.NONE if rebuilt.stalls else Reason.STEPS_ABSENT
        if step is None or self._options.scope == "request" or not rebuilt.steps:
            return Reason.NONE
        # A death shows in no step and names the one to come.
        death = self._own is not None and self._own.identity.kind == FailureKind.PROCESS_DEATH
        last = rebuilt.steps[-1].index + death
        return Reason.NONE if rebuilt.steps[0].index <= step <= last else Reason.STEPS_ABSENT

    @property
    def _modified(self) -> bool:
        """Whether this replay is of something else than what was recorded."""
        return bool(self._options.overrides.values) or self._options.scope == "request"

    def _draws_answers(self, run: Run) -> bool:
        """Whether the replay's answers are its own: neither fed from the record nor restored with its contents."""
        own = run.mode == "strict" or self._options.overrides.changes_tokens
        return self._options.target == "inference" and run.mode != "none" and own and self._options.kv != "restore"

    def _run(self, rebuilt: Rebuilt) -> Run:
        options = self._options
        deadline = Deadline(options.timeout_s, self._host.clock)
        rederive, beyond = options.schedule == "live", self._modified
        if options.target == "schedule":
            return run_schedule(
                rebuilt,
                failure=self._own,
                deadline=deadline,
                emit=self._emit,
                rederive=rederive,
                beyond=beyond,
                checks=options.checks == "on",
            )
        if not rebuilt.has_tokens:
            problem = finding(
                Reason.TOKENS_ABSENT.value,
                f"the dump was recorded at level {self._dump.state.manifest.record_level!r}, without token ids",
                remedy="record with --record tokens to replay inference; --target schedule works with lengths",
            )
            return self.empty(Reason.TOKENS_ABSENT, problem)
        if not self._modified and _stand_ins(self._dump.state, rebuilt):
            problem = finding(
                Reason.TOKENS_ABSENT.value,
                "no model drew the answers in this dump: it is of a run on scheduler and block pool alone, and a model "
                "would draw others",
                remedy="--target schedule replays it",
            )
            return self.empty(Reason.TOKENS_ABSENT, problem)
        try:
            # Torch is imported here, and only for this target: the base install has none.
            from replay.targets.inference import WINDOW_STEPS, InferenceOptions, InferenceReplay
            from replay.targets.kv_restore import cannot_restore, check_numbers
            from replay.targets.load import load_for, load_weights
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in ENGINE_PACKAGES:
                raise
            raise EngineNotInstalled(f"target inference needs {package}, which is not installed") from error

        inference = InferenceOptions(
            mode=options.mode,
            kernels=options.kernels,
            kv="recompute" if options.overrides.leaves_damage_out else options.kv,
            checks=options.checks == "on",
            window=options.window or WINDOW_STEPS,
            compare=not options.overrides.changes_tokens,
            rederive=rederive,
            beyond=beyond,
            alone=options.scope == "request",
        )
        last, dtype = last_step(rebuilt, self._own), options.overrides.dtype or self._dump.state.model.dtype
        if inference.kv == "restore" and (missing := cannot_restore(self._dump, rebuilt, last)) is not None:
            return self.empty(Reason.KV_CONTENTS_ABSENT, missing)
        if inference.kv != "recompute" and options.overrides.changes_numbers:
            check_numbers(self._dump, rebuilt, last, dtype=dtype, unchecked=inference.kv == "restore")
        if self._loaded is None:
            self._loaded = load_for(
                self._dump,
                self._weights(),
                dtype=dtype,
                mode=inference.mode,
                kernels=inference.kernels,
                device=options.device,
                emit=self._emit,
                load=self._host.load or load_weights,
                clock=self._host.clock,
            )
        return InferenceReplay(
            self._dump,
            rebuilt,
            self._loaded,
            options=inference,
            failure=self._own,
            deadline=deadline,
            emit=self._emit,
        ).run()

    def _weights(self) -> Path:
        from replay.models.locate import locate

        model = self._dump.state.model
        explicit = Path(self._options.model) if self._options.model else None
        return locate(
            name=model.name or self._dump.state.active_model or None,
            fingerprint=model.weights_fingerprint or None,
            explicit=explicit,
            beside=(self._dump.path.parent,),
        )

    def empty(self, reason: Reason, problem: dict[str, Any]) -> Run:
        """A run that could not begin."""
        rebuilt = rebuild(self._dump.state, Overrides())
        return Run(
            requests=rebuilt.requests,
            outputs=rebuilt.outputs,
            failures=[],
            mode="none",
            missing=reason,
            findings=[problem],
            num_blocks=rebuilt.config.num_blocks,
            bytes_per_block=rebuilt.bytes_per_block,
            quirks=rebuilt.quirks,
        )

    def findings(self) -> list[dict[str, Any]]:
        """What the dump itself makes known before anything ran."""
        found = []
        if self._dump.torn is not None:
            torn = self._dump.torn
            found.append(finding("torn", f"the dump is torn and good up to byte {torn.offset} only: {torn.reason}"))
        found += unknown_quirks(self._dump.state)
        found += told(self._problems)
        if self._expected is not None and self._expected.identity.kind == FailureKind.PROCESS_DEATH:
            found.append(
                finding(
                    "process-death",
                    "the process ended without writing a dump; what killed it came from outside of the recorded steps",
                )
            )
        return found


def _environment() -> dict[str, Any]:
    """Of every replay; a model that ran adds its own facts, the device among them."""
    return {
        "device": "none",
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
