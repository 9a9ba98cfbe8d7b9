"""Target app: a recorded program in its world, with other results of its tools."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from dumps import ledger
from dumps.errors import InvalidState
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.strategies.near import near
from replay.errors import UsageError
from replay.fuzz.subject import Told
from replay.isolate.limits import Limits
from replay.isolate.program import run_program
from replay.signature import Identity, Signature
from replay.verdict import Reason, Verdict


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AppExample:
    """The dump at ``path`` with other tool calls; ``state`` is all of it."""

    path: Path
    state: pb.RuntimeState

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.state.SerializeToString(deterministic=True)).hexdigest()


class AppSubject:
    """A `Subject`. Each example runs in a process of its own, which its world does not let out.

    What counts is what the program itself does with a result: one that then asks for what nobody recorded has left its
    world, and says nothing.
    """

    shrinks = True

    def __init__(
        self,
        states: Mapping[Path, pb.RuntimeState],
        *,
        target: str,
        app_path: tuple[str, ...],
        answers: str,
        model: Path | None,
        seconds: float,
        load_s: float,
    ) -> None:
        """Raises `UsageError` for a dump that is of no program, or of one whose tools gave no result."""
        self._states = dict(states)
        self._strategies = [self._strategy(path, state) for path, state in self._states.items()]
        self._job = {
            "target": target,
            "app_path": [os.path.abspath(folder) for folder in app_path or (os.curdir,)],
            "answers": answers,
            **({"model": str(model.absolute())} if model is not None else {}),
        }
        self._limits = Limits(timeout_s=seconds, load_timeout_s=load_s)
        self._folder = tempfile.TemporaryDirectory(prefix="pplx-fuzz-")
        self._seen: dict[tuple[str, Identity], dict[str, Any]] = {}

    @staticmethod
    def _strategy(path: Path, state: pb.RuntimeState) -> st.SearchStrategy[AppExample]:
        if not state.HasField("program"):
            raise UsageError(f"{path}: the dump is of no program", remedy="use --target schedule")
        calls = pb.RuntimeState()
        calls.CopyFrom(state)
        calls.ClearField("requests")  # near() would change those of its engine
        for call in calls.tool_calls:
            call.ClearField("request")
        try:
            neighbours = near(calls)
        except InvalidState as error:
            raise UsageError(
                f"{path}: the program's record has no result of a tool, and those are what is changed",
                remedy="record its tools: decorate them with @tool",
            ) from error

        def example(changed: pb.RuntimeState) -> AppExample:
            made = pb.RuntimeState()
            made.CopyFrom(state)
            for call, other in zip(made.tool_calls, changed.tool_calls, strict=True):
                request = call.request if call.HasField("request") else None
                call.CopyFrom(other)
                if request is not None:
                    call.request = request
            note = next((entry.note for entry in changed.ledger if entry.path == "tool_calls"), "")
            if made.tool_calls != state.tool_calls:
                ledger.record(made, "tool_calls", pb.SYNTHESISED, note)
            return AppExample(path=path, state=made)

        return neighbours.map(example)

    def strategy(self) -> st.SearchStrategy[AppExample]:
        return st.one_of(self._strategies)

    def key(self, example: AppExample) -> str:
        return f"{example.path} {example.digest}"

    def change(self, example: AppExample) -> str:
        """Calls that are other ones now."""
        before = self._states[example.path].tool_calls
        changed = [now for old, now in zip(before, example.state.tool_calls, strict=True) if old != now]
        told = {"pending": "does not come back", "failed": "fails"}
        words = [f"{one.id} {told.get(one.status, f'returns {one.result_json}')}" for one in changed]
        return "; ".join(words) or "the dump as it is"

    def start(self, example: AppExample) -> Path:
        return example.path

    def run(self, example: AppExample) -> Told:
        path = self._write(example, example.state)
        job = {**self._job, "dump": str(path), "set": self.settings(example)}
        result = run_program(job, limits=self._limits)
        path.unlink()
        report = result.report
        if report is None:
            assert result.error is not None
            return Told(lost=f"{result.error.kind}: {result.error.message}")
        # Where a dump records no failure there is none to differ from.
        failed = report["verdict"] == Verdict.DIFFERENT_FAILURE or report["reason_code"] == Reason.NOTHING_RECORDED
        if not failed or report["divergence"] or not report["signature"] or not report["failure"]:
            return Told()
        identity = Signature.from_json(report["signature"]).identity
        self._seen[example.digest, identity] = dict(report["failure"])
        return Told(failures=(identity,))

    def dump(self, example: AppExample, identity: Identity) -> bytes:
        """The changed dump with the failure that it led to in place of the recorded one."""
        seen = self._seen[example.digest, identity]
        state = pb.RuntimeState()
        state.CopyFrom(example.state)
        for name in ("failures", "exceptions"):
            state.ClearField(name)
        failure = state.failures.add(
            kind=identity.kind,
            invariant=identity.invariant,
            exception_type=identity.exception_type,
            message=str(seen.get("message", "")),
            frame=identity.frame,
        )
        if isinstance(step := seen.get("step"), int):
            failure.step = step
        failure.time_ns = example.state.failures[-1].time_ns if example.state.failures else 0
        state.program.finished = False
        state.program.ClearField("ended_ns")
        state.manifest.reason = identity.kind if identity.kind in ("exception", "timeout") else "demand"
        state.manifest.id = example.digest[:16]
        ledger.record(state, "failures", pb.SYNTHESISED, "seen in a replay with changed results of tools")
        ledger.record(state, "exceptions", pb.ABSENT, "the failure is one of a replay")
        path = self._write(example, state)
        data = path.read_bytes()
        path.unlink()
        return data

    def evidence(self, example: AppExample) -> tuple[str, bytes]:
        path = self._write(example, example.state)
        data = path.read_bytes()
        path.unlink()
        return "pplx", data

    def job(self) -> Mapping[str, Any]:
        return self._job

    def settings(self, example: AppExample) -> dict[str, str]:
        """A tool that runs again in a replay pays no heed to its recorded result."""
        before = self._states[example.path].tool_calls
        return {
            f"tool.{now.id}.result": now.result_json
            for old, now in zip(before, example.state.tool_calls, strict=True)
            if now != old and now.status == "finished"
        }

    def model(self, example: AppExample) -> Path | None:
        return None if (model := self._job.get("model")) is None else Path(str(model))

    def close(self) -> None:
        self._folder.cleanup()

    def _write(self, example: AppExample, state: pb.RuntimeState) -> Path:
        path = Path(self._folder.name) / "changed.pplx"
        with open_dump(example.path) as dump:
            sections = [
                SectionData(kind=one.kind, data=dump.read_section(one.kind), dtype=one.dtype, shape=tuple(one.shape))
                for one in dump.sections
            ]
        write_dump(path, state, sections)
        return path
