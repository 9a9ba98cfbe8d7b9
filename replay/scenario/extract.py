"""From a dump to the scenario of its run: who came and left, and when; what the engine decided is left behind.

A record that begins in the middle of a run has requests that had begun before. They come at its first step with what
they had drawn as a part of their prompt, and so have as many tokens as they had; their limits count what is left. How
penalties and stop strings saw those tokens is lost, which a note says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dumps.schema import state_pb2 as pb
from replay.engine.failure import FailureKind
from replay.engine.quirks import Quirk, parse_quirk
from replay.engine.request import FinishCause, Request, SamplingParams
from replay.errors import UsageError
from replay.scenario.scenario import OWN_ENDS, UNKNOWN_TOKEN, Scenario, Visit
from replay.scenario.shared import prefix_ids
from replay.targets.admit import admit
from replay.targets.rebuild import Rebuilt, rebuild
from replay.targets.settings import Overrides

DEPARTURES = (FinishCause.CLIENT_GONE, FinishCause.TIMEOUT)


def scenario_of(state: pb.RuntimeState) -> Scenario:
    """The scenario of a dump's run, up to the moment of the dump.

    Works for every record level; without token ids a model cannot play it. A stall's or an exception's ends are not
    departures: a play comes to them by itself.

    Raises:
        UsageError: the dump is of a program, or has no steps and no request that waits for the first one.
        InvalidState: the record contradicts itself so that it does not say what to run.
        LimitExceeded: a pool or a request is larger than any real one.
    """
    if state.HasField("program") and not state.steps and not state.requests:
        raise UsageError(
            "the dump is that of a program, and a scenario is one of an engine",
            remedy="use the dump that the engine's server wrote",
        )
    admit(state)
    return _Extraction(state, rebuild(state, Overrides())).scenario()


class _Extraction:
    def __init__(self, state: pb.RuntimeState, rebuilt: Rebuilt) -> None:
        self._state = state
        self._rebuilt = rebuilt
        self._start = rebuilt.start
        self._first = self._first_step()
        self._notes: list[str] = []

    def scenario(self) -> Scenario:
        arrivals = self._arrivals()
        if not arrivals:
            raise UsageError(
                "the dump has no requests whose arrival is known: the steps that led to its failure were not kept",
                remedy="record with a larger ring (--ring-bytes)",
            )
        departures = self._departures()
        shared = prefix_ids(self._rebuilt)
        visits = tuple(
            self._visit(request, step, departures.get(request.id, []), shared.get(request.id))
            for request, step in arrivals
        )
        rebuilt = self._rebuilt
        return Scenario(
            config=rebuilt.config,
            visits=visits,
            quirks=self._quirks(visits),
            checks=self._state.engine.checks,
            eos_token_ids=rebuilt.eos_token_ids,
            vocab_size=self._state.model.vocab_size,
            bytes_per_block=rebuilt.bytes_per_block,
            notes=tuple(self._notes),
        )

    def _first_step(self) -> int:
        """The step that becomes step 0."""
        if self._rebuilt.steps:
            return self._rebuilt.steps[0].index
        return self._state.scheduler.next_step

    def _arrivals(self) -> list[tuple[Request, int]]:
        """Requests in order of arrival, each with the step before which it comes."""
        found: dict[Request, int] = {}
        start = self._start
        if start is not None:
            found.update(dict.fromkeys((*start.running, *start.waiting), 0))
            drawn = sum(request.num_output for request in found)
            self._notes.append(
                f"the record begins at step {self._first}: {len(found)} requests that were there come at step 0"
                + (f", {drawn} tokens that they had drawn being part of their prompts" if drawn else "")
            )
        for step in self._rebuilt.steps:
            for request in step.arrived:
                found.setdefault(request, step.index - self._first)
        return [*found.items(), *((request, self._end) for request in self._latecomers(found))]

    def _latecomers(self, found: dict[Request, int]) -> list[Request]:
        """Those that no step has named yet: they came after the last one began, or wait for the first."""
        if not self._rebuilt.steps and self._start is None:
            if any(request.num_output_tokens for request in self._state.requests):
                return []
            self._notes.append("no step is on record: all requests come at step 0")
            return list(self._rebuilt.requests)
        waiting = {self._rebuilt.requests[index] for index in self._state.scheduler.waiting}
        return [request for request in self._rebuilt.requests if request in waiting and request not in found]

    @property
    def _end(self) -> int:
        """The step after the last one."""
        steps = self._rebuilt.steps
        return steps[-1].index + 1 - self._first if steps else 0

    def _departures(self) -> dict[str, list[tuple[int, int, FinishCause]]]:
        """By request id: (step, rank among those of the step, cause) of each abort that came from outside."""
        found: dict[str, list[tuple[int, int, FinishCause]]] = {}
        for step in self._rebuilt.steps:
            for rank, finish in enumerate(step.aborted):
                if finish.cause in DEPARTURES:
                    entry = (step.index - self._first, rank, finish.cause)
                    found.setdefault(finish.request.id, []).append(entry)
        # The dump of a deadline is written before its request is ended.
        for failure in self._state.failures:
            if failure.kind != FailureKind.TIMEOUT or not failure.HasField("request"):
                continue
            request_id = self._state.requests[failure.request].id
            if request_id not in found and not self._state.requests[failure.request].finish_cause:
                found[request_id] = [(self._end, len(found), FinishCause.TIMEOUT)]
        return found

    def _visit(
        self,
        request: Request,
        arrives: int,
        departures: Sequence[tuple[int, int, FinishCause]],
        shared: Sequence[int] | None,
    ) -> Visit:
        output = self._rebuilt.outputs[request.id]
        answer = output.tokens if output.tokens is not None else (UNKNOWN_TOKEN,) * output.num_tokens
        tokens = (*request.tokens[: request.num_prompt], *answer)
        if shared is not None:
            tokens = (*shared[: len(tokens)], *tokens[len(shared) :])
        cut = request.num_prompt + output.drawn_before
        (step, rank, cause), again = departures[0] if departures else (None, 0, FinishCause.CLIENT_GONE), departures[1:]
        return Visit(
            id=request.id,
            prompt=tokens[:cut],
            sampling=self._sampling(request, output.drawn_before),
            sample_index=request.sample_index,
            flags=request.flags,
            arrives=arrives,
            leaves=step,
            leave_cause=cause,
            leave_rank=rank,
            leaves_again=again[0][0] if again else None,
            output=tokens[cut:],
            ends=output.cause if output.cause in OWN_ENDS else None,
        )

    def _sampling(self, request: Request, drawn: int) -> SamplingParams:
        sampling = request.sampling
        if not sampling.top_p:  # no record has 0: its header did not fit, or its slot was taken again
            self._notes.append(f"the sampling parameters of {request.id} are not on record; it has defaults")
            return SamplingParams()
        if not drawn:
            return sampling
        if sampling.presence_penalty or sampling.frequency_penalty or sampling.stop:
            self._notes.append(f"penalties and stop strings of {request.id} do not see what it had drawn before")
        limit = max(sampling.max_tokens - drawn, 1) if sampling.max_tokens else 0
        return replace(sampling, max_tokens=limit, min_tokens=max(sampling.min_tokens - drawn, 0))

    def _quirks(self, visits: Sequence[Visit]) -> tuple[Quirk, ...]:
        """Those that this version knows, with steps and requests counted as in the scenario."""
        kept = []
        for recorded in self._state.quirks:
            text = f"{recorded.name}:{recorded.detail}" if recorded.detail else recorded.name
            try:
                moved = self._moved(parse_quirk(text), visits)
            except UsageError:
                self._notes.append(f"quirk {text} is not known here and left out")
                continue
            if moved is None:
                self._notes.append(f"quirk {text} is left out: it had acted before, or nobody can tell on whom")
            else:
                kept.append(moved)
        return tuple(kept)

    def _moved(self, quirk: Quirk, visits: Sequence[Visit]) -> Quirk | None:
        """A quirk in a scenario that begins later than the run. None where it had acted before, or on somebody who
        cannot be told: the number of a request that came before the record is not in it."""
        parameters = dict(quirk.parameters)
        if not self._first or self._start is None:
            return quirk
        if "request" in parameters:
            place = self._failing_place(visits)
            if place is None:
                return None
            parameters["request"] = place
            parameters["position"] = self._damaged_position(parameters["position"])
            self._notes.append(f"quirk {quirk.name} is taken to have acted on the request that failed")
        elif parameters.get("after_step", self._first) < self._first:
            return None
        if "after_step" in parameters:
            parameters["after_step"] = max(parameters["after_step"] - self._first, 0)
        return Quirk(name=quirk.name, parameters=parameters)

    def _failing_place(self, visits: Sequence[Visit]) -> int | None:
        """Place of the visit whose numbers were not finite."""
        for failure in reversed(self._state.failures):
            if failure.kind == FailureKind.NON_FINITE and failure.HasField("request"):
                name = self._state.requests[failure.request].id
                return next((place for place, visit in enumerate(visits) if visit.id == name), None)
        return None

    def _damaged_position(self, position: int) -> int:
        """Where the damage was found, if the failure tells; else where the quirk was aimed."""
        failure = self._state.failures[-1]
        known = failure.HasField("non_finite") and failure.non_finite.HasField("position")
        return failure.non_finite.position if known else position
