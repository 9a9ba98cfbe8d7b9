"""A redacted dump as a file, and whether it still gives the verdict that it claims to keep.

Only a replay can say that: the original and the redacted dump are replayed alike, each in a process of its own, and
verdict and signature identity are compared. Without weights that is target schedule; where the failure needs the
model's numbers and the redaction keeps them, target inference.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from dumps.redact import Redacted, redact_dump, write_redacted
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump, open_dump
from replay.isolate.limits import Limits
from replay.isolate.result import Result
from replay.isolate.supervisor import OnEvent
from replay.isolate.supervisor import run as run_isolated
from replay.report import EXIT_CODES, exit_code
from replay.verdict import Reason, Verdict

EXIT_UNCHECKED = EXIT_CODES[Verdict.INCONCLUSIVE]
SKIPPED = "not asked for"
PROGRAM = "a program's failure comes back only with the program: pplx-replay run OUT --target app=MODULE:CALLABLE"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one replay came to. ``identity`` is that of the failure it saw, None for none."""

    verdict: str
    reason_code: str
    identity: Mapping[str, str] | None

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Seen:
        signature = report.get("signature")
        return cls(report["verdict"], report["reason_code"], signature and signature["identity"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """``kept`` says whether both replays came to the same; None where that could not be found out, as ``note`` says.
    ``claimed``: the redaction had said that this dump's verdict survives it."""

    claimed: bool
    kept: bool | None
    target: str = ""
    before: Seen | None = None
    after: Seen | None = None
    note: str = ""

    @property
    def lost(self) -> bool:
        """Whether a verdict that was claimed to survive did not."""
        return self.claimed and self.kept is False

    @property
    def exit_code(self) -> int:
        """0 unless a claimed verdict is lost: then as a replay that expects the one of the original."""
        if not self.lost or self.before is None or self.after is None:
            return 0
        code = exit_code(Verdict(self.after.verdict), expected=Verdict(self.before.verdict))
        return code or EXIT_CODES[Verdict.DIFFERENT_FAILURE]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"lost": self.lost}


@dataclass(frozen=True, slots=True)
class Outcome:
    """``written`` is False where a claimed verdict is lost and nobody insisted: then there is no file."""

    redacted: Redacted
    check: Check
    written: bool


def redact_file(
    source: Path,
    target: Path,
    *,
    prompt: bool = False,
    check: bool = True,
    force: bool = False,
    model: Path | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    on_event: OnEvent | None = None,
) -> Outcome:
    """Write a redacted copy of the dump ``source`` to ``target``, mode 0600, whole or not at all.

    ``force`` replaces a ``target`` that is there, and keeps the file also when a claimed verdict is lost. Raises
    `DumpError` for a ``target`` that is there without ``force``, or that is ``source`` itself, and as `open_dump`.
    """
    _check_target(source, target, force=force)
    with open_dump(source) as dump:
        redacted = redact_dump(dump, prompt=prompt)
        state = dump.state
        with _part_beside(target) as part:
            _write(dump, redacted, part, target)
            checked = Check(claimed=_claims_own(redacted), kept=None, note=SKIPPED)
            if check:
                checked = verdict_kept(source, part, state, redacted, model=model, limits=limits, on_event=on_event)
            written = force or not checked.lost
            if written:
                _publish(part, target, force=force)
    return Outcome(redacted, checked, written)


def verdict_kept(
    original: Path,
    copy: Path,
    state: pb.RuntimeState,
    redacted: Redacted,
    *,
    model: Path | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    on_event: OnEvent | None = None,
) -> Check:
    """Replay both dumps and compare. ``state`` is the original's."""
    if state.HasField("program"):
        return Check(claimed=_claims_own(redacted), kept=None, note=PROGRAM)
    keeps_numbers = all(claim.kept for claim in redacted.claims)
    claimed = _claims_own(redacted)

    def run(path: Path, target: str, weights: Path | None = None) -> Result:
        job = {"dump": str(path.absolute()), "target": target}
        return run_isolated(
            job | ({"model": str(weights.absolute())} if weights else {}), limits=limits, on_event=on_event
        )

    target = "schedule"
    before = run(original, target)
    if keeps_numbers and before.report is not None and before.report["reason_code"] == Reason.NEEDS_INFERENCE:
        target = "inference"
        before = run(original, target, model)
    if before.report is None:
        assert before.error is not None
        return Check(
            claimed=claimed,
            kept=None,
            target=target,
            note=f"the original could not be replayed: {before.error.message}",
        )
    seen = Seen.of(before.report)
    if not keeps_numbers and seen.verdict != Verdict.REPRODUCED:
        claimed = False  # no other target can run the copy, so what this one does not show is lost
    if target == "inference" and seen.reason_code in (Reason.WEIGHTS_UNAVAILABLE, Reason.ENGINE_NOT_INSTALLED):
        note = f"the failure needs the model's numbers, and that cannot run here: {seen.reason_code}"
        return Check(claimed=claimed, kept=None, target=target, before=seen, note=note)
    after = _beside(original, target, model, lambda weights: run(copy, target, weights))
    if after.report is None:
        assert after.error is not None
        note = f"the redacted dump could not be replayed: {after.error.message}"
        failed = Seen(Verdict.INCONCLUSIVE, after.error.kind, None)
        return Check(claimed=claimed, kept=False, target=target, before=seen, after=failed, note=note)
    then = Seen.of(after.report)
    same = (seen.verdict, _compared(seen, state, redacted)) == (then.verdict, _compared(then, state, redacted))
    return Check(claimed=claimed, kept=same, target=target, before=seen, after=then)


def _claims_own(redacted: Redacted) -> bool:
    """Whether the verdict on this dump's own failure is said to survive."""
    return all(claim.kept for claim in redacted.claims if claim.own)


def _compared(seen: Seen, original: pb.RuntimeState, redacted: Redacted) -> Mapping[str, str] | None:
    """The identity as far as the two dumps can share it. Where ids in the message have other names, each verdict has
    compared it with its own dump's."""
    renamed = [one.message for one in original.failures[-1:]] != [one.message for one in redacted.state.failures[-1:]]
    if seen.identity is None or not renamed:
        return seen.identity
    return {name: value for name, value in seen.identity.items() if name != "message"}


def _beside(original: Path, target: str, model: Path | None, run: Callable[[Path | None], Result]) -> Result:
    """Replay the copy with the weights that the original's replay may have found beside it: they are not beside the
    copy."""
    folder = original.absolute().parent / "model"
    if target == "inference" and model is None and folder.is_dir():
        done = run(folder)
        if done.report is None or done.report["reason_code"] != Reason.WEIGHTS_UNAVAILABLE:
            return done
    return run(model)


def _check_target(source: Path, target: Path, *, force: bool) -> None:
    if not os.path.lexists(target):
        return
    if target.exists() and source.exists() and os.path.samefile(source, target):
        raise DumpError(
            f"{target} is the dump to be redacted",
            remedy="A redaction never changes its input: name another file with -o.",
        )
    if target.is_dir():
        raise DumpError(f"{target} is a folder", remedy="Name the new dump with -o.")
    if not force:
        raise DumpError(f"{target} exists already", remedy="Choose another name with -o, or replace it with --force.")


@contextmanager
def _part_beside(target: Path) -> Iterator[Path]:
    part = target.with_name(f".pplx-{secrets.token_hex(8)}.part")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _write(dump: Dump, redacted: Redacted, part: Path, target: Path) -> None:
    if not target.parent.is_dir():
        raise DumpError(f"cannot write {target}: {target.parent} is no folder", remedy="Choose a writable place.")
    try:
        write_redacted(dump, redacted, part)
    except OSError as error:
        remedy = "Make room, or choose another place with -o."
        raise DumpError(f"cannot write {target}: {error.strerror or error}", remedy=remedy) from error


def _publish(part: Path, target: Path, *, force: bool) -> None:
    if force:
        os.replace(part, target)
        return
    try:
        os.link(part, target)
    except FileExistsError:
        raise DumpError(f"{target} exists already", remedy="Choose another name with -o.") from None
    except OSError:  # a file system without hard links; the check before it leaves a small window
        part.rename(target)
