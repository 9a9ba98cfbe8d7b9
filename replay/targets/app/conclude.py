"""From what a program did in its recorded world to a verdict.

The rules, in order:

1. Until our first refusal the program is itself; what it did after that is our doing, too. A failure after it counts
   only where it agrees with the recorded one in everything.
2. What it asked for and nobody recorded lies past the failure where everything recorded had been asked for: the
   program lived on. Asked before that, it parted from the record.
3. A recorded deadline (``recording(..., timeout=)``) is missed again where the program's own clock passed it, or where
   a stall is proven: then no time would have helped.
4. A stall in which an answer is awaited that had not come when the record ended shows nothing but that end.
5. What no replay can follow (a process of its own, another event loop) makes it inconclusive, unless the recorded
   failure came back all the same. So does what the guard refused, even where the program went on without it.
6. The same exception that came from another one is a different failure: a group's members are compared, and the causes
   that passed through the program's own code.
7. A failure that reaches no caller, since it ends a thread or a task that nobody awaits, counts as in a recording.
8. A program that asked for nothing of what was recorded and ended well may be another one: it is inconclusive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.divergence import Divergence
from replay.engine.failure import Failure, FailureKind
from replay.errors import Refused, ReplayError
from replay.report import finding
from replay.runtime.env import Refusal
from replay.runtime.loop import Stalled
from replay.signature import Location, Signature
from replay.targets.app.lost import Lost
from replay.targets.app.origins import differing_origin
from replay.targets.app.outcome import Outcome, failure_of, standing_in, stopper
from replay.verdict import Decision, Evidence, Reason, Verdict, decide


class Clock(Protocol):
    @property
    def started_ns(self) -> int: ...

    def monotonic_ns(self) -> int: ...


class World(Protocol):
    """What is asked of the world that a program ran in: an `Env`, or what one request of a server saw of it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def world_step(self) -> int: ...

    @property
    def first_refusal(self) -> Refusal | None: ...

    def left_over(self) -> list[pb.Exchange]: ...


@dataclass(frozen=True, slots=True)
class Conclusion:
    decision: Decision
    failure: Failure | None = None
    divergence: Divergence | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """What a replay looks for. ``state`` is the record, ``signature`` the failure; ``modified`` says that tools were
    given results or the world was forked, ``foreign`` that the signature is not the dump's own. ``request`` is the
    inbound one whose failure it is, in a server."""

    state: pb.RuntimeState
    signature: Signature | None
    modified: bool = False
    foreign: bool = False
    tools_given: bool = False
    request: pb.Exchange | None = None

    @property
    def step(self) -> int:
        """The world step of the failure, 0 where it is not known."""
        return (self.signature.location.step or 0) if self.signature is not None else 0

    @property
    def deadline_ns(self) -> int | None:
        """Monotonic time at which a recorded deadline was over; None where the failure is not one."""
        if self.foreign or self.signature is None or self.signature.identity.kind != FailureKind.TIMEOUT:
            return None
        return self.state.failures[-1].time_ns

    @property
    def failed_on_the_way(self) -> bool:
        """Whether the recorded program went on after its failure: it ended a thread or a task, not the program."""
        on_the_way = self.state.HasField("program") and not self.state.program.HasField("ended_ns")
        kind = self.signature.identity.kind if self.signature is not None else ""
        return on_the_way and kind == FailureKind.EXCEPTION and self.request is None and not self.foreign

    @property
    def was_slow(self) -> bool:
        """Whether the failure is a timeout of the program's own, and nothing outside of it was late."""
        if self.foreign or self.signature is None or "Timeout" not in self.signature.identity.exception_type:
            return False
        failed = any(one.error for one in self.state.exchanges if one.direction == "out")
        return not (failed or self.was_waiting or any(one.status != "finished" for one in self.state.tool_calls))

    @property
    def was_waiting(self) -> bool:
        """Whether an answer was still to come when the record ended."""
        return any(one.direction == "out" and not one.HasField("ended_ns") for one in self.state.exchanges)


def conclude(
    sought: Sought,
    env: World,
    outcome: Outcome,
    *,
    lost: Sequence[Lost] = (),
    cut: str = "",
    asked_nothing: bool = False,
) -> Conclusion:
    """Apply the rules above to a program that has ended. ``lost`` are its failures that reached no caller, ``cut`` is
    what the guard refused it while it was still itself. ``asked_nothing``: none of what was recorded, and there is
    some; one that ends well so may be another program, whose health says nothing of the recorded one's."""
    found = _of_one_origin(sought, _of_the_program(sought, env, outcome, cut), outcome.error)
    well = outcome.ended in ("returned", "exited") and found.decision.verdict is Verdict.NOT_REPRODUCED
    if asked_nothing and well:
        decision = replace(found.decision, verdict=Verdict.INCONCLUSIVE, reason=Reason.NOTHING_ASKED)
        found = replace(found, decision=decision)
    if found.decision.verdict is Verdict.REPRODUCED or sought.signature is None or not lost:
        return found
    # When a thread or a task ends, and when that is noticed, is chance: how many calls were begun by then is not asked.
    anywhere = replace(sought, signature=replace(sought.signature, location=Location()))
    tried = [_of_one_origin(sought, _decided(anywhere, one.failure), one.error) for one in lost]
    for other in tried:
        if other.decision.verdict is Verdict.REPRODUCED:
            return other
    found.findings.extend(finding("failed-elsewhere", f"reached no caller: {one.sentence}") for one in lost[:3])
    was_lost = sought.failed_on_the_way and found.decision.verdict is Verdict.NOT_REPRODUCED
    return replace(tried[0], findings=found.findings) if was_lost else found


def _of_one_origin(sought: Sought, found: Conclusion, error: BaseException | None) -> Conclusion:
    """``found``, unless ``error`` came from something else than the recorded failure did."""
    if found.decision.verdict is not Verdict.REPRODUCED or sought.foreign or error is None:
        return found
    if found.failure is None or found.failure.kind is not FailureKind.EXCEPTION:
        return found
    difference = differing_origin(sought.state.exceptions, error)
    match = found.decision.match | {"identity.origin": not difference}
    if not difference:
        return replace(found, decision=replace(found.decision, match=match))
    decision = replace(found.decision, verdict=Verdict.DIFFERENT_FAILURE, match=match)
    return replace(found, decision=decision, findings=[finding("other-origin", difference), *found.findings])


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
        return _unless_reproduced(found, error)
    if found.decision.verdict is Verdict.NOT_REPRODUCED and env.world_step < sought.step and not sought.tools_given:
        message = f"the program ended after {env.world_step} calls; the recorded one failed after {sought.step}"
        found.findings.insert(0, finding("ended-early", message))
    return found


def _unrecorded(sought: Sought, env: World, outcome: Outcome, first: Refusal) -> Conclusion:
    # A tool that was given an answer does not ask for what it asked for then, so some of the record may be left.
    past_failure = sought.tools_given and first.step >= sought.step
    if first.left_over and not past_failure:
        divergence = Divergence(
            kind="request",
            request_id=first.task,
            step=first.step,
            recorded="nothing of the kind",
            replayed=first.sentence,
        )
        failure = failure_of(outcome, step=env.world_step)
        seen = Signature.of(failure) if failure is not None else None
        return Conclusion(Decision(Verdict.DIVERGED, Reason.NONE, seen), failure, divergence)
    beyond = finding(
        "beyond-the-record",
        f"the program lived past the end of the record; what it asked next, nobody recorded: {first.sentence}",
    )
    if _is_overdue(sought, first.monotonic_ns):
        return _decided(sought, _overdue(sought, env, frame=""), [beyond])
    found = _decided(sought, failure_of(outcome, step=env.world_step), [beyond])
    return found if found.decision.verdict is Verdict.REPRODUCED else _decided(sought, None, [beyond])


def _stalled(sought: Sought, env: World, outcome: Outcome) -> Conclusion:
    error = outcome.error
    assert error is not None
    stall = finding("stalled", str(error))
    if sought.deadline_ns is not None:
        if _is_overdue(sought, env.clock.monotonic_ns()) or _is_proven(error):
            return _decided(sought, _overdue(sought, env, frame=standing_in(error)), [stall])
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
    return found if _is_proven(error) else _unless_reproduced(found, None)


def _decided(sought: Sought, failure: Failure | None, findings: Sequence[dict[str, Any]] = ()) -> Conclusion:
    expected = sought.signature
    seen = [Signature.of(failure)] if failure is not None else []
    if expected is not None and failure is not None and failure.kind is FailureKind.TIMEOUT and not failure.frame:
        # Where it stood when its time was over, and what it had asked by then, is not known: it went on.
        expected = Signature(replace(expected.identity, frame=""), Location())
    evidence = Evidence(seen=seen, modified=sought.modified, foreign=sought.foreign, on_a_virtual_clock=True)
    found = Conclusion(decide(expected, evidence), failure, None, list(findings))
    if found.decision.verdict is Verdict.NOT_REPRODUCED and sought.deadline_ns is not None and not sought.was_waiting:
        message = "at its deadline the recorded program waited for no answer: if it computed, it may still be too slow"
        found.findings.insert(0, finding("computing-takes-no-time", message))
    elif found.decision.verdict is Verdict.NOT_REPRODUCED and sought.was_slow:
        message = (
            "no answer was late when the recorded program ran into a timeout: if it computed, it may still be slow"
        )
        found.findings.insert(0, finding("computing-takes-no-time", message))
    return found


def _unless_reproduced(found: Conclusion, error: ReplayError | None) -> Conclusion:
    """``found``, or that this replay cannot say, because of ``error`` or of what is found already."""
    if found.decision.verdict is Verdict.REPRODUCED:
        return found
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
