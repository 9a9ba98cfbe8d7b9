"""A replay's report for people: the verdict first, then what it rests on, then the details. Plain text in a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from dumps.text import printable
from replay.cli.endpoint_view import endpoint_meaning, endpoint_rows
from replay.cli.world_view import lived_on, world_rows, world_time

NAME_WIDTH = 21
MAX_LINES = 40  # of one finding
MOST_HOLDERS = 8

# What a replay is built from. Weaker grades of anything else are in the JSON report only.
RESTS_ON = (
    "model.",
    "engine.",
    "steps",
    "scheduler.start",
    "requests[].prompt_token_ids",
    "requests[].output_token_ids",
)

STYLES = {
    "reproduced": "bold green",
    "not-reproduced": "bold yellow",
    "different-failure": "bold magenta",
    "diverged": "bold red",
    "inconclusive": "bold yellow",
}

MEANINGS = {
    "reproduced": "the same failure came back",
    "not-reproduced": "the replay ran to its end without this failure",
    "different-failure": "something failed, and it is not the recorded failure",
    "diverged": "the replay parted from the record before the failure",
    "inconclusive": "this replay cannot say",
}

REASONS = {
    "tokens-absent": "token ids were not recorded",
    "steps-absent": "the steps that lead to the failure are not in the dump",
    "weights-unavailable": "the weights are not on this machine",
    "engine-not-installed": "this install has no engine",
    "model-unsupported": "this model or its dtype is not supported yet",
    "device-unavailable": "the device that was asked for cannot be used here",
    "kv-contents-absent": "--kv restore was asked for, and the dump holds no KV contents that can be restored",
    "needs-inference": "this failure shows in the model's numbers only: use --target inference",
    "needs-checks": "this failure is one that only checks see: leave out --checks off",
    "no-failure-recorded": "the dump records no failure to look for",
    "process-death": "the process was ended from outside; nothing in the recorded steps fails",
    "kind-unsupported": "no replay can show a failure of the recorded kind yet",
    "external-cause": "the failure came from outside of the engine",
    "ran-alone": "alone, a request cannot show what it lacked because of others",
    "record-ends": "under these settings answers outlive the record, and only a guess of their length fails",
    "program-absent": "the dump holds no recorded program",
    "program-unsupported": "the program did something that no replay can follow",
    "nothing-asked": "the program asked for nothing of what was recorded: is it the right entry?",
    "beyond-the-record": "the program asked for what nobody recorded, perhaps before the failing line",
    "computing-takes-no-time": "a deadline was missed while nothing was waited for, and computing takes no time here",
    "program-without-text": "the dump does not hold what the program was told, so it cannot be told it again",
    "not-visible-from-outside": "a failure of this kind cannot be seen from outside of the server",
    "endpoint-unreachable": "the endpoint cannot be reached",
    "endpoint-without-model": "the endpoint has no model of that name",
    "endpoint-refused": "the endpoint refuses the recorded requests",
    "endpoint-silent": "the endpoint sent nothing that could be compared",
    "endpoint-uncounted": "no try came to its end",
    "same-kind-elsewhere": "the same kind of failure, in another place",
    "rounding-noise": "rounding on this platform explains the difference",
}


def show(console: Console, report: Mapping[str, Any]) -> None:
    """Print ``report``. All text that came from the dump is escaped."""
    verdict = str(report["verdict"])
    headline = Text(verdict, style=STYLES.get(verdict, "bold"))
    if report["reason_code"]:
        headline.append(f" ({printable(str(report['reason_code']))})", style="default not bold")
    headline.append(f": {_meaning(report)}", style="default not bold")
    console.print(headline)
    for line in _weak(report):
        console.print(Text(line, style="yellow"))
    for name, value in _rows(report):
        console.print(Text(f"{name:<{NAME_WIDTH}}", style="dim").append(printable(value, 2000), style="not dim"))
    for item in report["findings"]:
        first, *more = [printable(line, 2000) for line in str(item["message"]).splitlines()[:MAX_LINES]] or [""]
        console.print(Text("\n  ".join([f"- {first}", *more])))
        if item.get("remedy"):
            console.print(Text("  " + printable(str(item["remedy"]), 500), style="dim"))


def _meaning(report: Mapping[str, Any]) -> str:
    reason = REASONS.get(report["reason_code"], report["reason_code"])
    expected, seen = report["expected_signature"], report["signature"]
    if "endpoint" in report and (meaning := endpoint_meaning(report)):
        return meaning
    if report["verdict"] == "reproduced" and any(item["code"] == "message-differs" for item in report["findings"]):
        return "the same failure came back, with other numbers in its message"
    if report["verdict"] == "reproduced" and expected["location"]["request_id"] != seen["location"]["request_id"]:
        return "a failure with the same identity came back, in another request"
    if report["verdict"] == "reproduced" and expected["location"] != seen["location"]:
        return "a failure with the same identity came back, at another place"
    if report["verdict"] == "different-failure" and expected is None:
        return "the dump records no failure, and its replay shows one"
    if report["verdict"] == "not-reproduced" and lived_on(report):
        return "the program lived past the end of the record without this failure"
    return str(reason or MEANINGS.get(report["verdict"], ""))


def _weak(report: Mapping[str, Any]) -> Iterator[str]:
    """What the report rests on that was not observed, before anything else is said."""
    grades: dict[str, list[str]] = {}
    for path, grade in report["fidelity"].items():
        if not path.startswith(RESTS_ON):
            continue
        grades.setdefault(grade, []).append(path)
    for grade, paths in grades.items():
        yield printable(f"{grade}: {', '.join(paths[:6])}{' ...' if len(paths) > 6 else ''}", 1000)


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "dump", f"{report['dump']['id']} (sha256 {report['dump']['sha256'][:12]})"
    if report["expected_signature"]:
        yield "expected", _signature(report["expected_signature"], step=_step_word(report))
    if report["signature"]:
        yield "seen", _signature(report["signature"], step=_step_word(report))
    wrong = [name for name, holds in report["match"].items() if not holds]
    if wrong:
        yield "differs in", _renamed(report) if wrong == ["identity.frame"] else ", ".join(wrong)
    if report["divergence"]:
        yield "diverged at", _divergence(report["divergence"])
    place = (report["failure"] or {}).get("non_finite")
    if place:
        yield "non-finite", _place(place)
    pool = (report["failure"] or {}).get("pool")
    if pool:
        yield "KV pool", _pool(pool)
    kv = report["kv"]
    if kv["seq_len_exceeded_at"] is not None:
        for name in ("kv_cache_used_bytes", "max_kv_cache_bytes"):
            yield name, "not known: the dump does not say how large a block is" if kv[name] is None else f"{kv[name]:,}"
        yield "seq_len_exceeded_at", f"{kv['seq_len_exceeded_at']} tokens"
    for name, value in report["settings"].items():
        yield "changed", f"{name} = {value}"
    if answers := report["answers"]:
        yield "answers", _answers(answers)
    for quirk in report["quirks"]:
        yield "quirk when recorded", " ".join(filter(None, (quirk["name"], quirk["detail"], f"({quirk['note']})")))
    if "endpoint" in report:
        yield from endpoint_rows(report)
        yield "time", _time(report["timings"])
        return
    if "world" in report:
        yield from world_rows(report)
        yield from _repeated(report)
        yield "time", world_time(report["timings"], answers=report["world"].get("model_answers", 0))
        return
    yield "replayed", _effort(report)
    if report["perplexity"] is not None:
        yield "perplexity", f"{report['perplexity']:.4g} of the recorded answers, under this model"
    if decisions := report["fallbacks"]:
        yield "early exit", _decisions(decisions)
    if report["mode"] != "none":
        yield "requests", _requests(report["requests"])
    if (report["settings"] or report["scope"] == "request") and report["expected_signature"]:
        name = report["expected_signature"]["location"]["request_id"]
        yield from (("failing request", _now(r)) for r in report["requests"] if r["id"] == name)
    yield from _repeated(report)
    yield "time", _time(report["timings"])


def _time(timings: Mapping[str, float]) -> str:
    parts = [f"{name.removesuffix('_s').replace('_', '-')} {timings[name]:.2f} s" for name in timings if timings[name]]
    return ", ".join(parts)


def _repeated(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if report["repeat"]["n"] > 1:
        yield "repeat", f"reproduced {report['repeat']['reproduced']} of {report['repeat']['n']}"


def _step_word(report: Mapping[str, Any]) -> str:
    """A program has no steps: it makes calls to the world outside."""
    return "call" if "world" in report else "step"


def _renamed(report: Mapping[str, Any]) -> str:
    """The words for a failure that differs in its frame alone."""
    expected, seen = report["expected_signature"]["identity"], report["signature"]["identity"]
    there, here = seen.get("frame") or "no known place", expected["frame"]
    if seen["kind"] != "exception":
        return f"identity.frame: in {there} instead of {here}"
    return f"same exception and message, raised in {there} instead of {here}: renamed?"


def _signature(signature: Mapping[str, Any], *, step: str) -> str:
    identity, location = signature["identity"], signature["location"]
    words = [identity["kind"]]
    if identity["invariant"]:
        words.append(f"({identity['invariant']})")
    if identity["exception_type"]:
        words.append(identity["exception_type"].rsplit(".", 1)[-1])
    frame = identity.get("frame")
    if frame:
        words.append(f"in {frame}")
    places = [
        f"{step if name == 'step' else name.removesuffix('_id')} {location[name]}"
        for name in ("request_id", "step", "position")
        if location.get(name) is not None
    ]
    return " ".join(words) + (f" at {', '.join(places)}" if places else "")


def _divergence(d: Mapping[str, Any]) -> str:
    if d["kind"] == "request":
        return f"call {d['step']}, task {d['request_id']}: the program asked for what nobody recorded: {d['replayed']}"
    where = [f"request {d['request_id']}"]
    if d["output_index"] is not None:
        where.append(f"output token {d['output_index']} (position {d['position']})")
    if d["step"] is not None:
        where.append(f"step {d['step']}")
    text = f"{', '.join(where)}: {d['kind']} recorded {d['recorded']}, replayed {d['replayed']}"
    if d["kind"] in ("token", "logits"):
        text += f"; {d['cause']}"
    if d["margin"] is not None:
        text += f"; top two logits {d['margin']:.4g} apart"
    return text


def _place(place: Mapping[str, Any]) -> str:
    if place["where"] not in ("kv-cache", "logits"):
        return f"first in the sampler, stage {place['where']}; the logits are finite"
    if place.get("layer") is None:
        return "first in the logits; the KV cache is finite"
    writer = place.get("written_by_step")
    by = f", written by step {writer}" if writer is not None and writer >= 0 else ", written before the first kept step"
    return (
        f"first in layer {place['layer']}, {place['tensor']}, block {place['block']}, slot {place['slot']} "
        f"(position {place['position']}){by}"
    )


def _pool(pool: Mapping[str, Any]) -> str:
    """What a request wanted of the pool, why it waits if it does, and who holds what."""
    needed = pool["blocks_needed"]
    text = f"{needed} block{'s' * (needed != 1)} wanted, {pool['blocks_free']} of {pool['num_blocks']} free"
    if pool["wait_reason"]:
        text += f"; it waits: {pool['wait_reason']}"
    held = [f"{one['request_id']} {one['blocks']} ({one['tokens']} tokens)" for one in pool["holders"]]
    more = f" and {len(held) - MOST_HOLDERS} more" if len(held) > MOST_HOLDERS else ""
    return text + (f"; held: {', '.join(held[:MOST_HOLDERS])}{more}" if held else "; nothing runs")


def _effort(report: Mapping[str, Any]) -> str:
    compared = report["compared"]
    if report["target"] == "schedule":
        return "scheduler and block pool, without a model"
    if report["mode"] == "none":
        return "nothing: the replay could not begin"
    text = f"{report['mode']}, kernels {report['kernels']}: {compared['fast_forwarded_tokens']} tokens fast-forwarded"
    how = "run freely" if report["mode"] == "strict" else "run on the recorded tokens"
    steps = f"{compared['window_steps']} step{'s' * (compared['window_steps'] != 1)}"
    text += f", {steps} {how}; {compared['tokens']} answer tokens compared"
    if report["settings"] and not compared["tokens"] and not report["answers"]:
        text += f" (under {', '.join(report['settings'])} they may be others)"
    if compared["digests"]:
        text += f", {compared['digests']} logits rows bit by bit"
    if compared["noise"]:
        text += f", {compared['noise']} differ by rounding"
    if compared["not_compared"]:
        text += f", {compared['not_compared']} fed without comparison"
    return text


def _answers(answers: Mapping[str, Any]) -> str:
    """Whether the changed run gave the same answers."""
    first = answers["first_difference"]
    if first is None:
        return f"all {answers['compared']} as recorded, as far as both runs went"
    step = "" if first["step"] is None else f" (step {first['step']})"
    return (
        f"{answers['as_recorded']} of {answers['compared']} as recorded; the first to differ is request "
        f"{first['request_id']}, output token {first['output_index']}{step}: recorded {first['recorded']}, "
        f"replayed {first['replayed']}"
    )


def _decisions(decisions: Mapping[str, Any]) -> str:
    text = f"{decisions['replayed']} decisions to go on, {decisions['recorded']} recorded"
    return f"{text}; {decisions['compared']} compared, {decisions['differ']} differ"


def _now(request: Mapping[str, Any]) -> str:
    """What became of the request that had failed."""
    end = request["finish_cause"] or request["status"]
    return f"{end} after {request['output_len']} answer tokens; recorded {request['recorded_output_len']}"


def _requests(requests: list[Mapping[str, Any]]) -> str:
    endings: dict[str, int] = {}
    for request in requests:
        name = request["finish_cause"] or request["status"]
        endings[name] = endings.get(name, 0) + 1
    return f"{len(requests)}: " + ", ".join(f"{count} {name}" for name, count in endings.items())
