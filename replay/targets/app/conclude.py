"""From what a program did in its recorded world to a verdict.

The rules, in order:

1. Until our first refusal the program is itself; what it did after that is our doing, too. A failure after it is the
   recorded one only where it agrees with it in everything; where it differs in how many calls were begun by then, the
   bug is still there, and the program parted from the record.
2. What it asked for and nobody recorded lies past the failure where everything recorded had been asked for, and was
   over that was over then: the program lived on. Asked before that, it parted from the record. Where the program was
   still in the functions that lead to the failing line, and has not provably passed it, that cannot be told.
3. A recorded deadline (``recording(..., timeout=)``) is missed again where the program's own clock passed it, or where
   a stall is proven: then no time would have helped.
4. A stall in which an answer is awaited that had not come when the record ended shows nothing but that end.
5. What no replay can follow (a process of its own, another event loop) makes it inconclusive, unless the recorded
   failure came back all the same, and not since one thread did what another, refused one had done. So does what the
   guard refused, even where the program went on without it, and what the system denied to native code, where the
   failure came from that.
6. The same exception that came from another one is a different failure: a group's members are compared, and the causes
   that passed through the program's own code.
7. A failure that reaches no caller, since it ends a thread or a task that nobody awaits, counts as in a recording.
8. A program that asked for nothing of what was recorded and raised nothing may be another one: it is inconclusive.
9. Leaving by `sys.exit` with a status that is not 0 is a failure, and never the recorded one.
10. How many calls were begun by the failure is not asked where it has a frame of the program's own: a changed program
    may make fewer. Nor are the numbers in a message; those that the recorded world holds still are told.
11. A deadline that computing missed is not missed again, since computing takes no time here: an end without the
    failure is inconclusive then.
12. Where no failure is recorded, what fails in the replay is told and not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dumps.text import printable
from replay.divergence import Divergence
from replay.engine.failure import Failure, FailureKind
from replay.errors import Refused, ReplayError
from replay.report import finding
from replay.runtime.env import Refusal
from replay.runtime.errors import AnswerNotRecorded, UnrecordedRequest
from replay.runtime.loop import Stalled
from replay.signature import Location, Signature
from replay.targets.app.failing_line import may_still_fail
from replay.targets.app.failing_task import suspects
from replay.targets.app.kept_out import kept_out
from replay.targets.app.lost import Lost
from replay.targets.app.origins import differing_messages, differing_origin
from replay.targets.app.outcome import Outcome, failure_of, standing_in, stopper
from replay.targets.app.record_end import seen_before, what_was_to_end
from replay.targets.app.refused_threads import calls_left, stood_in_for
from replay.targets.app.sought import Conclusion, Sought, World
from replay.verdict import Decision, Evidence, Reason, Verdict, decide

_NO_ALARM = Refused(
    "the recorded failure came from an alarm, and in the replay none came: computing takes no time there",
    remedy="for a deadline on computing, check the time in the code, or look at the recorded stack instead",
)
_TIME_IT = "take the time of what it computes then, with the recorded input; the recorded stack says where it stood"


def conclude(
    sought: Sought,
    env: World,
    outcome: Outcome,
    *,
    lost: Sequence[Lost] = (),
    cut: str = "",
    asked_nothing: bool = False,
    alarm_unheard: bool = False,
) -> Conclusion:
    """Apply the rules above to a program that has ended. ``lost`` are its failures that reached no caller, ``cut`` is
    what the guard refused it while it was still itself. ``asked_nothing``: none of what was recorded, and there is
    some; one that ends so without an exception may be another program, which says nothing of the recorded one.
    ``alarm_unheard``: the recorded failure came out of an alarm's handler, and here no alarm came."""
    found = _concluded(sought, env, outcome, lost=lost, cut=cut, asked_nothing=asked_nothing)
    if found.decision.verdict is Verdict.REPRODUCED and not sought.foreign:
        refused = stood_in_for(sought.state, env.refusals, env.asked_by(), outcome.error)
        if refused is not None:
            return _inconclusive(found, refused)
    if alarm_unheard and found.decision.verdict in (Verdict.NOT_REPRODUCED, Verdict.DIFFERENT_FAILURE):
        return _unless_reproduced(found, _NO_ALARM)
    return _unless_too_slow(sought, env, found)


def _unless_too_slow(sought: Sought, env: World, found: Conclusion) -> Conclusion:
    """``found``, or that this replay cannot say whether the program still misses a deadline that computing missed. It
    does not miss the recording's where it was done earlier than the recorded one began to compute."""
    slow = any(one["code"] == Reason.COMPUTING for one in found.findings)
    done = sought.deadline_ns is not None and env.clock.monotonic_ns() < sought.last_heard_ns
    if found.decision.verdict is not Verdict.NOT_REPRODUCED or done or not slow:
        return found
    return replace(found, decision=replace(found.decision, verdict=Verdict.INCONCLUSIVE, reason=Reason.COMPUTING))


def _concluded(
    sought: Sought, env: World, outcome: Outcome, *, lost: Sequence[Lost], cut: str, asked_nothing: bool
) -> Conclusion:
    found = _of_one_origin(sought, _of_the_program(sought, env, outcome, cut), outcome.error)
    if sought.signature is None:
        return _of_no_failure(sought, found)
    ended = {"returned": Verdict.NOT_REPRODUCED, "exited": found.decision.verdict}.get(outcome.ended)
    well = ended in (Verdict.NOT_REPRODUCED, Verdict.DIFFERENT_FAILURE) and found.decision.verdict is ended
    if asked_nothing and well:
        decision = replace(found.decision, verdict=Verdict.INCONCLUSIVE, reason=Reason.NOTHING_ASKED)
        found = replace(found, decision=decision)
    if found.decision.verdict is Verdict.REPRODUCED or not lost:
        return found
    # When a thread or a task ends, and when that is noticed, is chance: how many calls were begun by then is not asked.
    anywhere = replace(sought, signature=replace(sought.signature, location=Location()))
    tried = [_of_the_lost(sought, anywhere, one) for one in lost]
    for other in tried:
        if other.decision.verdict is Verdict.REPRODUCED:
            return other
    found.findings.extend(finding("failed-elsewhere", f"reached no caller: {one.sentence}") for one in lost[:3])
    was_lost = sought.failed_on_the_way and found.decision.verdict is Verdict.NOT_REPRODUCED
    return replace(tried[0], findings=found.findings) if was_lost else found


def _of_the_lost(sought: Sought, anywhere: Sought, lost: Lost) -> Conclusion:
    found = _of_one_origin(sought, _decided(anywhere, lost.failure), lost.error)
    denied = _kept_out(sought, lost.error)
    return found if denied is None else _unless_reproduced(found, denied)


def _kept_out(sought: Sought, error: BaseException | None) -> Refused | None:
    """What the system denied this replay, and with it the program."""
    what = kept_out(error, sought.state.exceptions)
    if not what:
        return None
    return Refused(
        f"the system denied the program what is not faked: {what}",
        remedy='replay an entry that does without, or keep it behind a @tool(replay="answer"), and record',
    )


def _of_one_origin(sought: Sought, found: Conclusion, error: BaseException | None) -> Conclusion:
    """``found``, unless ``error`` came from something else than the recorded failure did."""
    if found.decision.verdict is not Verdict.REPRODUCED or sought.foreign or error is None:
        return found
    if found.failure is None or found.failure.kind is not FailureKind.EXCEPTION:
        return found
    difference = _other_origin(sought, error)
    match = found.decision.match | {"identity.origin": not difference}
    if not difference:
        other = [finding("message-differs", text) for text in differing_messages(sought.state.exceptions, error)]
        return replace(found, decision=replace(found.decision, match=match), findings=[*other, *found.findings])
    decision = replace(found.decision, verdict=Verdict.DIFFERENT_FAILURE, match=match)
    return replace(found, decision=decision, findings=[finding("other-origin", difference), *found.findings])


def _other_origin(sought: Sought, error: BaseException | None) -> str:
    return differing_origin(sought.state.exceptions, error) if error is not None and not sought.foreign else ""


def _at_any_call(sought: Sought, found: Conclusion) -> Conclusion:
    """``found``, or that the failure came back where it differs in nothing but how many calls were begun by then."""
    known = sought.signature is not None and sought.signature.identity.frame
    if not known or found.decision.reason is not Reason.SAME_KIND_ELSEWHERE or found.failure is None:
        return found
    decision = replace(found.decision, verdict=Verdict.REPRODUCED, reason=Reason.NONE)
    message = f"it came after {found.failure.step} calls; recorded: after {sought.step}. The program may be changed"
    return replace(found, decision=decision, findings=[finding("calls-differ", message), *found.findings])


def _of_no_failure(sought: Sought, found: Conclusion) -> Conclusion:
    """There is none to look for: what failed in the replay is told and not judged."""
    failure = found.failure
    if failure is None or found.decision.verdict is Verdict.DIVERGED:
        return found
    why = "was interrupted" if sought.state.manifest.reason == "signal" else "was looked at as it ran"
    what = failure.exception_type.rpartition(".")[2] or failure.kind.value
    where = f" in {failure.frame}" if failure.frame else ""
    message = (
        f"the recorded program {why}, and no failure is recorded; its replay went on, and ended with {what}{where}"
    )
    decision = replace(
        found.decision, verdict=Verdict.INCONCLUSIVE, reason=Reason.NOTHING_RECORDED, seen=Signature.of(failure)
    )
    return Conclusion(decision, failure, None, [finding("failed-later", message), *found.findings])


def _of_the_program(sought: Sought, env: World, outcome: Outcome, cut: str) -> Conclusion:
    if cut:
        refused = Refused(
            f"the program was refused {cut}, and what it did after that is not what it does in its world",
            remedy="replay an entry that does without, or record one",
        )
        return _unless_reproduced(_decided(sought, failure_of(outcome, step=env.world_step)), refused)
    first = env.first_refusal
    if first is not None and first.kind == "unrecorded":
        return _unrecorded(sought, env, outcome, first)
    if outcome.ended == "stalled":
        return _stalled(sought, env, outcome)
    if _is_overdue(sought, env.clock.monotonic_ns()):
        return _decided(sought, _overdue(sought, env, frame=""))
    found = _decided(sought, failure_of(outcome, step=env.world_step))
    error = first.error if first is not None else stopper(outcome.error)
    if error is not None:
        if env.world_step + calls_left(sought.state, env.refusals, env.left_over()) == sought.step:
            found = _at_any_call(sought, found)
        return _unless_reproduced(found, error)
    if (denied := _kept_out(sought, outcome.error)) is not None:
        return _unless_reproduced(found, denied)
    left = found.decision.verdict is Verdict.NOT_REPRODUCED or outcome.ended == "exited"
    if left and env.world_step < sought.step and not sought.tools_given:
        message = f"the program ended after {env.world_step} calls; the recorded one failed after {sought.step}"
        found.findings.insert(0, finding("ended-early", message))
    return _at_any_call(sought, found)


def _unrecorded(sought: Sought, env: World, outcome: Outcome, first: Refusal) -> Conclusion:
    failure = failure_of(outcome, step=env.world_step)
    # A tool that was given an answer does not ask for what it asked for then, so some of the record may be left.
    past_failure = sought.tools_given and first.step >= sought.step
    if first.left_over and not past_failure:
        return _parted(first, failure)
    read_on = isinstance(first.error, AnswerNotRecorded)
    if not read_on and (under_way := what_was_to_end(sought.state, first.standpoint)):
        message = f"everything recorded was asked, but it asked before this had ended, which it had then: {under_way}"
        return _parted(first, failure, finding("asked-early", message))
    beyond = finding(
        "beyond-the-record",
        f"the program lived past the end of the record; what it asked next, nobody recorded: {first.sentence}",
    )
    if _is_overdue(sought, first.monotonic_ns):
        return _decided(sought, _overdue(sought, env, frame=""), [beyond])
    found, expected = _decided(sought, failure, [beyond]), sought.signature
    if found.decision.verdict is Verdict.REPRODUCED or expected is None:
        return found if expected is not None else replace(_decided(sought, None, [beyond]), failure=failure)
    again, before = found.decision.seen, seen_before(expected, first)
    if again is not None and (again.identity != expected.identity or _other_origin(sought, outcome.error)):
        again = None
    if (seen := again or before) is not None:
        when = "failed then as it did when recorded" if again else "had failed as it did when recorded"
        message = f"it asked once more than was recorded, and {when}: the bug is still there"
        return _parted(first, failure, finding("failed-alike", message), seen=seen)
    stacks = first.standpoint.stacks
    if may_still_fail(
        sought.state,
        expected.identity.frame,
        stacks,
        unchanged=sought.tools_given,
        foreign=sought.foreign,
        tasks=suspects(sought.state, first, env.asked_by()),
    ):
        message = (
            f"everything recorded was asked, and then what nobody recorded: {first.sentence}. Whether the failing line "
            "had been passed by then cannot be told: the program was still in the functions that lead to it"
        )
        remedy = "answer it with --fork --handlers MODULE:FUNCTION, or record the program anew"
        if not isinstance(first.error, UnrecordedRequest):
            remedy = first.error.remedy
        told = finding(Reason.BEYOND_THE_RECORD.value, message, remedy=remedy)
        decision = Decision(Verdict.INCONCLUSIVE, Reason.BEYOND_THE_RECORD)
        return replace(_decided(sought, None, [told]), decision=decision, failure=failure)
    return replace(_decided(sought, None, [beyond]), failure=failure)


def _parted(
    first: Refusal, failure: Failure | None, *findings: dict[str, Any], seen: Signature | None = None
) -> Conclusion:
    divergence = Divergence(
        kind="request",
        request_id=first.task,
        step=first.step,
        recorded="nothing of the kind",
        replayed=first.sentence,
    )
    if seen is None and failure is not None:
        seen = Signature.of(failure)
    return Conclusion(Decision(Verdict.DIVERGED, Reason.NONE, seen), failure, divergence, list(findings))


def _stalled(sought: Sought, env: World, outcome: Outcome) -> Conclusion:
    error = outcome.error
    assert error is not None
    stall = finding("stalled", str(error))
    if sought.deadline_ns is not None:
        if _is_overdue(sought, env.clock.monotonic_ns()) or _is_proven(error):
            return _at_any_call(sought, _decided(sought, _overdue(sought, env, frame=standing_in(error)), [stall]))
    elif waits := _open_at_the_end(sought, env):
        message = f"the program lived to the end of the record, and waits for what had not come then: {waits}"
        return _decided(sought, None, [finding("beyond-the-record", message), stall])
    failure = failure_of(outcome, step=env.world_step)
    if sought.signature is None:
        # Somebody asked for this dump, perhaps because of this very stall; the dump does not say so.
        found = _decided(sought, None, [stall])
        seen = Signature.of(failure) if failure is not None else None
        return replace(found, decision=replace(found.decision, seen=seen), failure=failure)
    found = _decided(sought, failure, [stall])
    return _at_any_call(sought, found) if _is_proven(error) else _unless_reproduced(found, None)


def _decided(sought: Sought, failure: Failure | None, findings: Sequence[dict[str, Any]] = ()) -> Conclusion:
    expected = sought.signature
    seen = [Signature.of(failure)] if failure is not None else []
    if expected is not None and failure is not None and failure.kind is FailureKind.TIMEOUT and not failure.frame:
        # Where it stood when its time was over, and what it had asked by then, is not known: it went on.
        expected = Signature(replace(expected.identity, frame=""), Location())
    evidence = Evidence(seen=seen, modified=sought.modified, foreign=sought.foreign, on_a_virtual_clock=True)
    found = Conclusion(decide(expected, evidence), failure, None, list(findings))
    if found.decision.verdict is Verdict.NOT_REPRODUCED and sought.was_slow:
        message = (
            "the recorded program waited for no answer when its deadline came: if it computed, it may still be slow"
        )
        found.findings.insert(0, finding(Reason.COMPUTING.value, message, remedy=_TIME_IT))
    return found


def _unless_reproduced(found: Conclusion, error: ReplayError | None) -> Conclusion:
    """``found``, or that this replay cannot say, because of ``error`` or of what is found already."""
    return found if found.decision.verdict is Verdict.REPRODUCED else _inconclusive(found, error)


def _inconclusive(found: Conclusion, error: ReplayError | None) -> Conclusion:
    decision = replace(found.decision, verdict=Verdict.INCONCLUSIVE, reason=Reason.PROGRAM_UNSUPPORTED)
    why = [] if error is None else [finding(decision.reason.value, str(error), remedy=error.remedy)]
    return replace(found, decision=decision, findings=[*why, *found.findings])


def _is_overdue(sought: Sought, now_ns: int) -> bool:
    return sought.deadline_ns is not None and now_ns >= sought.deadline_ns


def _overdue(sought: Sought, env: World, *, frame: str) -> Failure:
    assert sought.deadline_ns is not None
    request = sought.request
    what, began_ns = ("program", env.clock.started_ns) if request is None else ("request", request.started_ns)
    seconds = (sought.deadline_ns - began_ns) / 1e9  # a little more than was asked for, which the record's words say
    return Failure(
        kind=FailureKind.TIMEOUT,
        invariant=what,
        message=sought.state.failures[-1].message or f"the {what} took longer than {seconds:.3g} s",
        step=env.world_step,
        frame=frame,
    )


def _is_proven(error: BaseException) -> bool:
    """One who blocks the only thread waits for ever; a loop might still be woken from outside."""
    return error.proven if isinstance(error, Stalled) else True


def _open_at_the_end(sought: Sought, env: World) -> str:
    """The requests that were asked and whose answers had not come when the record ended, in words."""
    left = {exchange.id for exchange in env.left_over()}
    within = sought.request.id if sought.request is not None else ""
    waiting = [
        f"{exchange.id} {exchange.method} {printable(exchange.url, 200)}"
        for exchange in sought.state.exchanges
        if exchange.direction == "out"
        and not exchange.HasField("ended_ns")
        and exchange.id not in left
        and (not within or exchange.within == within)
    ]
    return ", ".join(waiting[:5])
