"""Opens the dump and plans what an endpoint is asked. Runs in the guarded child, without network and without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump, open_dump
from replay.engine.failure import FailureKind
from replay.errors import ENGINE_PACKAGES, ReplayError
from replay.report import finding
from replay.signature import Identity, Location, Signature, normalise
from replay.targets.endpoint.engine_calls import Decode, engine_calls, untold
from replay.targets.endpoint.options import EndpointOptions, endpoint_options
from replay.targets.endpoint.plan import SILENCE_S, Plan
from replay.targets.endpoint.program_calls import Symptom, program_calls
from replay.targets.expected import expected_signature
from replay.targets.quirks import listed
from replay.targets.summary import of_dump
from replay.verdict import Reason

STALL_S = 10.0
"""The least silence that is taken for a stall. Our own engine notices one at once, and a server that is only busy
needs no longer than this to send its first byte."""

_INVISIBLE = {
    FailureKind.CONTAMINATION: "whose blocks a request read shows inside of an engine only",
    FailureKind.PROCESS_DEATH: "the process was ended from outside; no request does that",
}


def make_plan(job: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """`Plan` as JSON. Raises `DumpError` and `UsageError`; what the dump lacks is a plan without requests."""
    options = endpoint_options(job)
    emit({"event": "progress", "stage": "open", "done": 0, "total": None})
    with open_dump(Path(job["dump"]), salvage=options.salvage) as dump:
        expected = expected_signature(dump.state, options.signature)
        plan = _of_program(dump, options) if dump.state.HasField("program") else _of_engine(dump, options, expected)
        return plan.to_json()


def _of_engine(dump: Dump, options: EndpointOptions, expected: Signature | None) -> Plan:
    state = dump.state
    findings = _torn(dump)

    def nothing(reason: Reason, message: str, remedy: str) -> Plan:
        problem = finding(reason.value, message, remedy=remedy)
        return Plan(source="engine", reason=reason, expected=expected, head=_head(dump), findings=(*findings, problem))

    if (unseen := _unseen(expected)) is not None:
        return nothing(*unseen)
    assert expected is not None
    missing = untold(state)
    if missing or not state.requests:
        return nothing(
            Reason.TOKENS_ABSENT,
            f"{len(missing)} of {len(state.requests)} requests were recorded without their prompt "
            f"(record level {state.manifest.record_level!r})",
            "record with --record tokens; --target schedule works with lengths",
        )
    decode, why = _decoder(dump)
    if decode is None and not all(request.HasField("prompt_text") for request in state.requests):
        findings.append(finding("texts-not-compared", f"answers are compared by length only: {why}"))
    findings += _unsaid(state)
    kind = FailureKind(expected.identity.kind)
    model = options.model or state.active_model or state.model.name
    deadline = _deadline_s(dump) if kind in (FailureKind.TIMEOUT, FailureKind.STALL) else None
    stalls = kind is FailureKind.STALL
    return Plan(
        source="engine",
        kind=kind,
        expected=expected,
        model=model,
        calls=tuple(engine_calls(state, model, decode)),
        deadline_s=None if stalls else deadline,
        silence_s=max(deadline or 0.0, STALL_S) if stalls else SILENCE_S,
        head=_head(dump),
        findings=tuple(findings),
    )


def _of_program(dump: Dump, options: EndpointOptions) -> Plan:
    """Looks for what failed at the model, which need not be what failed in the program."""
    state = dump.state
    findings = _torn(dump)
    if options.signature is not None:
        findings.append(finding("signature-ignored", "of a program, its own recorded answers are what is looked for"))

    def nothing(reason: Reason, message: str, remedy: str) -> Plan:
        problem = finding(reason.value, message, remedy=remedy)
        return Plan(source="program", reason=reason, head=_head(dump), findings=(*findings, problem))

    if state.manifest.record_level != "full":
        return nothing(
            Reason.PROGRAM_SHAPE_ONLY,
            f"the program was recorded at level {state.manifest.record_level!r}, without what it asked its model",
            'record it with recording(..., level="full")',
        )
    planned = program_calls(state, options.model)
    if planned.other_wire:
        message = f"{planned.other_wire} requests to a model are not on the wire of completions and are not sent"
        findings.append(finding("other-wire", message))
    if planned.symptom is None:
        return nothing(
            Reason.NOT_VISIBLE,
            f"none of the {len(planned.calls)} recorded answers of the model failed: the failure lies in the program",
            "replay the program itself: --target app=MODULE:CALLABLE",
        )
    expected = _signature(planned.symptom)
    own = state.failures[-1] if state.failures else None
    if own is not None:
        findings.append(
            finding(
                "looked-for",
                f"the program failed with {own.exception_type or own.kind}; at its model that was "
                f"{planned.symptom.kind.value} in exchange {planned.symptom.exchange_id}, which is looked for",
            )
        )
    timed = planned.symptom.kind is FailureKind.TIMEOUT and planned.symptom.after_s > 0
    return Plan(
        source="program",
        kind=planned.symptom.kind,
        expected=expected,
        model=options.model or "",
        calls=tuple(planned.calls),
        deadline_s=planned.symptom.after_s if timed else None,
        head=_head(dump),
        findings=tuple(findings),
    )


def _unsaid(state: pb.RuntimeState) -> list[dict[str, Any]]:
    """What recorded requests asked for beside their tokens, and no other server could be told."""
    parts = {
        "images or sounds": sum(bool(request.multimodal_hashes) for request in state.requests),
        "a grammar": sum(bool(request.grammar_state) for request in state.requests),
        "early exit": sum(request.flags.HasField("early_exit") for request in state.requests),
    }
    return [
        finding("not-sent", f"{what}, which {count} recorded requests asked for, cannot be sent; answers may differ")
        for what, count in parts.items()
        if count
    ]


def _unseen(expected: Signature | None) -> tuple[Reason, str, str] | None:
    """Why a failure cannot be looked for from outside, with what to do."""
    if expected is None:
        return Reason.NOTHING_RECORDED, "the dump records no failure to look for; nothing was sent", ""
    try:
        kind = FailureKind(expected.identity.kind)
    except ValueError:
        message = f"no replay knows failures of the kind {expected.identity.kind!r:.80}; nothing was sent"
        return Reason.KIND_UNSUPPORTED, message, ""
    if kind not in _INVISIBLE:
        return None
    reason = Reason.PROCESS_DEATH if kind is FailureKind.PROCESS_DEATH else Reason.NOT_VISIBLE
    message = f"{kind.value} cannot be seen from outside: {_INVISIBLE[kind]}; nothing was sent"
    return reason, message, "use --target inference or --target schedule"


def _signature(symptom: Symptom) -> Signature:
    return Signature(
        Identity(kind=symptom.kind.value, message=normalise(symptom.message)),
        Location(request_id=symptom.exchange_id),
    )


def _deadline_s(dump: Dump) -> float | None:
    """The time that the failing request had had when its failure was noted."""
    failure = dump.state.failures[-1]
    if not failure.HasField("request"):
        return None
    seconds = (failure.time_ns - dump.state.requests[failure.request].arrival_ns) / 1e9
    return seconds if seconds > 0 else None


def _decoder(dump: Dump) -> tuple[Decode | None, str]:
    """The recorded model's tokenizer, where this machine has it; else why not."""
    model = dump.state.model
    try:
        from replay.engine.detokenize import Vocabulary, load_tokenizer
        from replay.models.locate import locate

        folder = locate(
            name=model.name or dump.state.active_model or None,
            fingerprint=model.weights_fingerprint or None,
            beside=(dump.path.parent,),
        )
        tokenizer = load_tokenizer(folder)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ENGINE_PACKAGES:
            raise
        return None, f"{error.name} is not installed"
    except ReplayError as error:
        return None, str(error)
    vocabulary = Vocabulary(tokenizer)

    def decode(tokens: Sequence[int], special: bool) -> str:
        if special:
            return str(tokenizer.decode(list(tokens), skip_special_tokens=False))
        one_by_one = vocabulary.detokenizer()
        return "".join(one_by_one.push(token) for token in tokens)  # an incomplete character at the end stays out

    return decode, ""


def _head(dump: Dump) -> dict[str, Any]:
    return of_dump(dump) | {"quirks": listed(dump.state, ())}


def _torn(dump: Dump) -> list[dict[str, Any]]:
    if dump.torn is None:
        return []
    return [finding("torn", f"the dump is torn and good up to byte {dump.torn.offset} only: {dump.torn.reason}")]
