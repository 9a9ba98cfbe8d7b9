"""The report of a replay against an endpoint: the fixed keys of every report, and what each request got."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from dumps.text import printable
from replay.engine.failure import FailureKind
from replay.report import build_report, finding
from replay.targets.endpoint.judge import Try, deciding, failures_in, names_no_model
from replay.targets.endpoint.options import TARGET, EndpointOptions
from replay.targets.endpoint.plan import Call, Plan, Recorded
from replay.targets.endpoint.play import Heard, Outcome
from replay.verdict import Decision, Reason, Verdict

_EXCERPT = 60
_BEFORE = 20

_BLIND = {
    FailureKind.EXCEPTION: "an error status, an error event or a dropped connection counts, whatever raised it",
    FailureKind.NON_FINITE: "an error counts, unless the server names another; text that differs does not, since any "
    "other rounding changes it",
    FailureKind.SILENT_TRUNCATION: "an answer that ended for its length before its limit counts, whatever cut it",
    FailureKind.TIMEOUT: "an answer that had not ended within the recorded time counts; a slow one looks the same",
    FailureKind.STALL: "silence counts, and is no proof that nothing would have come",
}


def endpoint_report(
    plan: Plan,
    options: EndpointOptions,
    tries: Sequence[Try],
    *,
    key_from: str | None,
    dropped: Mapping[str, str],
    as_text: bool,
    models: Sequence[str],
    findings: Sequence[dict[str, Any]],
    timings: Mapping[str, float],
) -> dict[str, Any]:
    """The JSON report. Without ``tries`` nothing was sent, and the plan says why. ``dropped`` holds parameters that the
    endpoint refused and its words; ``models`` are the names it lists."""
    told = deciding(tries) if tries else None
    decision = told.decision if told else Decision(Verdict.INCONCLUSIVE, plan.reason)
    reproduced = sum(one.decision.verdict is Verdict.REPRODUCED for one in tries)
    return build_report(
        decision,
        dump=plan.head["dump"],
        mode="outside" if told else "none",
        target=f"{TARGET}{options.url}",
        settings={},
        expected=plan.expected,
        requests=_requests(plan, told, full=options.full) if told else [],
        failure=told.failures[0] if told and told.failures else None,
        own={
            "endpoint": {
                "url": options.url,
                "model": plan.model or None,
                "source": plan.source,
                "calls": len(plan.calls),
                "schedule_s": round(max((call.at_s for call in plan.calls), default=0.0), 3),
                "prompts": "as-recorded" if plan.source == "program" else "text" if as_text else "token-ids",
                "dropped_parameters": sorted(dropped),
                "api_key": key_from,
                "tries": [_try(one) for one in tries],
            }
        },
        findings=[
            *_about(plan, told, tries, reproduced),
            *_about_wire(told, dropped, as_text, models),
            *plan.findings,
            *findings,
        ],
        fidelity=plan.head["fidelity"],
        quirks=plan.head["quirks"],
        repeat={"n": len(tries), "reproduced": reproduced},
        timings=timings,
        environment={"device": "none", "python": platform.python_version(), "machine": platform.machine()},
    )


def _about(plan: Plan, told: Try | None, tries: Sequence[Try], reproduced: int) -> list[dict[str, Any]]:
    if told is None or plan.kind is None:
        return []
    found = []
    if told.decision.verdict is not Verdict.INCONCLUSIVE:
        found.append(
            finding(
                "outside-view",
                f"seen from outside: {_BLIND[plan.kind]}; exception type, invariant and place are not compared, and "
                "how requests share batches is the server's own affair",
            )
        )
    if told.decision.verdict is Verdict.NOT_REPRODUCED:
        clean = sum(one.decision.verdict is Verdict.NOT_REPRODUCED for one in tries)
        message = f"0 of {clean} tries: that it did not come proves little; raise --repeat to look longer"
        found.append(finding("absence-proves-little", message))
    verdicts = [one.decision.verdict for one in tries]
    if len(set(verdicts)) > 1:
        counted = ", ".join(f"{verdicts.count(v)} x {v.value}" for v in dict.fromkeys(verdicts))
        found.append(finding("tries-differ", f"{len(tries)} tries: {counted}"))
    if told.decision.reason is Reason.ENDPOINT_UNCOUNTED:
        message = "the server does not say how many tokens an answer has, so that a cut one looks like a full one"
        found.append(finding(told.decision.reason.value, message))
    return found


def _about_wire(
    told: Try | None, dropped: Mapping[str, str], as_text: bool, models: Sequence[str]
) -> list[dict[str, Any]]:
    found = []
    if told is not None and told.decision.verdict is Verdict.INCONCLUSIVE:
        trouble = next((one for one in told.heard if one.outcome not in (Outcome.ANSWERED, Outcome.ABORTED)), None)
        if trouble is not None:
            status = f"HTTP {trouble.status}: " if trouble.status else ""
            words = printable(trouble.error.message or trouble.outcome.value, 500)
            found.append(finding("endpoint-said", f"{status}{words}", remedy=_remedy(trouble, models)))
    for name, words in dropped.items():
        message = f"the endpoint refuses {name!r}; it was left out, and answers may differ: {printable(words)}"
        found.append(finding("parameter-dropped", message, parameter=name))
    if as_text:
        message = "the endpoint takes no token ids; prompts were sent as text, and its tokens may be others"
        found.append(finding("prompts-as-text", message))
    return found


def _remedy(heard: Heard, models: Sequence[str]) -> str:
    if heard.outcome is Outcome.REFUSED and names_no_model(heard):
        names = ", ".join(printable(name, 80) for name in models)
        return f"name one with --model; it lists {names}" if names else "name the endpoint's model with --model"
    if heard.status in (401, 403):
        return "set OPENAI_API_KEY, or name another variable with --api-key-env"
    if heard.outcome is Outcome.UNREACHABLE:
        return "check that the server runs and that its URL is right"
    if heard.status == 404:
        return "check the URL: requests go to its /completions or /chat/completions"
    return ""


def _try(one: Try) -> dict[str, Any]:
    outcomes = [heard.outcome.value for heard in one.heard]
    return {
        "verdict": one.decision.verdict.value,
        "reason_code": one.decision.reason.value,
        "outcomes": {name: outcomes.count(name) for name in dict.fromkeys(outcomes)},
        "failures": [
            {"request_id": failure.request_id, "kind": failure.kind.value, "message": failure.message}
            for failure in one.failures
        ],
    }


def _requests(plan: Plan, told: Try, *, full: bool) -> list[dict[str, Any]]:
    return [
        _request(plan, call, heard, index, full=full)
        for call, heard in zip(plan.calls, told.heard, strict=True)
        for index in range(call.n)
    ]


def _request(plan: Plan, call: Call, heard: Heard, index: int, *, full: bool) -> dict[str, Any]:
    recorded = call.recorded[index] if index < len(call.recorded) else Recorded(id="")
    said = heard.reply.choices.get(index)
    assert plan.kind is not None
    cut = heard.outcome is Outcome.ANSWERED and any(
        failure.kind is FailureKind.SILENT_TRUNCATION and failure.request_id == (recorded.id or None)
        for failure in failures_in(call, heard, plan.kind)
    )
    entry: dict[str, Any] = {
        "id": recorded.id,
        "status": "cut" if cut else heard.outcome.value,
        "finish_reason": (said.finish_reason or None) if said else None,
        "finish_cause": None,
        "prompt_len": recorded.prompt_len,
        "output_len": heard.reply.tokens(index),
        "asked_len": call.asked,
        "recorded_finish_reason": recorded.finish_reason or None,
        "recorded_output_len": recorded.output_len,
        "output_sha256": None,
        "logits_digest": None,
        "perplexity": None,
        "http_status": heard.status,
        "error": heard.error.message or None,
        "first_byte_s": None if heard.first_byte_s is None else round(heard.first_byte_s, 3),
        "total_s": round(heard.total_s, 3),
        "text": None if said is None or recorded.text is None else _compared(recorded.text, said.text),
    }
    if full and said is not None:
        entry["output_text"] = said.text
    return entry


def _compared(recorded: str, heard: str) -> dict[str, Any]:
    """Whether two answers say the same as far as both go; ``at`` is the first character at which they do not."""
    both = min(len(recorded), len(heard))
    at = next((at for at in range(both) if recorded[at] != heard[at]), None)
    if at is None:
        return {"as_recorded": True, "compared_chars": both, "at": None, "recorded": None, "endpoint": None}
    start = max(0, at - _BEFORE)
    return {
        "as_recorded": False,
        "compared_chars": both,
        "at": at,
        "recorded": printable(recorded[start : start + _EXCERPT]),
        "endpoint": printable(heard[start : start + _EXCERPT]),
    }
