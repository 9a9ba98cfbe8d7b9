"""The recorded network of one program: connections, answers, and what differed from the recording in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol

from dumps.exchanges.canonical import canonical_request
from dumps.exchanges.match_key import TimeDifference
from dumps.record.seams.http_tap import Asker
from dumps.record.seams.log import inbound, task_name
from dumps.record.secrets import scrub_body, scrub_header, scrub_url
from dumps.schema import state_pb2 as pb
from replay.runtime.clock import VirtualClock
from replay.runtime.deadlines import set_after
from replay.runtime.errors import AnswerNotRecorded, ResponseNotRecorded, RuntimeReplayError, UnrecordedRequest
from replay.runtime.network import wording
from replay.runtime.network.connection import OPEN, ConnectFailed, Connection
from replay.runtime.network.match import Matcher, Recorded
from replay.runtime.network.model import ModelAnswers, asks_a_model, compare_answers
from replay.runtime.network.play import Event, is_system_timeout, is_whole, play, was_let_go

HARDLY_LATE_NS = 5_000_000
"""So much later than recorded, by the looks at the clock and by what fell into one round of the loop, one asks at the
recorded time all the same."""

MAX_TOLD = 50
"""Findings of one kind that are told one by one."""

_MORE = {
    "left-over": "recorded and not asked",
    "order": "asked in another order",
    "time": "fields with another time",
}


class Fork(Protocol):
    """Answers requests beyond the recorded world."""

    def handle(self, request: pb.Exchange) -> pb.Exchange | None:
        """The response to ``request`` as an exchange (status, response_headers, chunks, framing "body" or "wire");
        None if this is not one that it answers."""
        ...


@dataclass(frozen=True, slots=True)
class NetworkFinding:
    """How the replay's network differed from the recording. ``message`` is for a person."""

    kind: Literal["unrecorded", "left-over", "order", "model-answer", "forked", "refused", "time"]
    message: str
    exchange_id: str = ""
    call_site: tuple[pb.Frame, ...] = ()
    within: str = field(default_factory=inbound.get)
    """Id of the inbound request in whose handling it showed, where there is one."""


class Network:
    """What the recorded peers say to a replayed program. For one thread at a time, the clock's own.

    Time moves on to when a connection or a request was asked for in the recording, if that is still to come: what the
    program computed in between took time then, and takes none now. What comes back comes at its recorded time.

    ``refusals`` keeps each error that was raised into the program: it may have swallowed it.
    """

    def __init__(
        self,
        exchanges: Sequence[pb.Exchange],
        *,
        clock: VirtualClock,
        model: ModelAnswers | None = None,
        fork: Fork | None = None,
    ) -> None:
        self.clock = clock
        self.refusals: list[RuntimeReplayError] = []
        self._matcher = Matcher.of(exchanges)
        self._let_go_ns = [exchange.ended_ns for exchange in exchanges if was_let_go(exchange)]
        self._model = model
        self._fork = fork
        self._noted: list[NetworkFinding] = []
        self._times: dict[str, tuple[int, NetworkFinding]] = {}
        self._answered: list[tuple[pb.Exchange, Connection, int | None]] = []
        self.connected = False  # or tried to: a program may give up before it asks

    def connect(self, host: str, port: int, *, tls: bool | None) -> Connection:
        """A connection to ``host``, as the program named it. ``tls`` None: a handshake may follow, or not.

        An address that is not in the recording connects too: the request then tells what was wanted.

        Raises ConnectFailed if this one failed when it was recorded.
        """
        self.connected = True
        recorded = self._matcher.connection(host, port, task_name())
        if recorded is not None:
            self._catch_up(recorded.exchange, recorded.exchange.started_ns)
        connect_ns = self._connect_ns(recorded.exchange) if recorded is not None else 0
        failure = _failure(recorded.exchange, connect_ns) if recorded and not recorded.exchange.method else None
        in_handshake = failure is not None and failure.in_handshake and tls is None
        if failure is not None and not in_handshake:
            raise failure

        def answer(exchange: pb.Exchange, *, continued: bool, asker: Asker | None) -> list[Event]:
            return self._answer(connection, exchange, continued=continued, asker=asker)

        connection = Connection(
            host=host,
            port=port,
            tls=bool(tls),
            clock=self.clock,
            answer=answer,
            refuse=self.refuse,
            unknown=lambda: self._unknown(connection),
            abandon=lambda method, url: self._matcher.abandon(method, scrub_url(url), task_name()),
            released=lambda: _release(recorded),
            connect_ns=connect_ns if not in_handshake else 0,
            handshake_failure=failure,
        )
        return connection

    def refuse(self, error: RuntimeReplayError) -> RuntimeReplayError:
        """Note an error that is about to be raised into the program."""
        self.refusals.append(error)
        return error

    def unsupported(self, library: str) -> None:
        """A peer does not know this version of ``library``: what it does is not replayed, and the guard blocks it."""
        message = f"unknown version of {library}: what it sends is not replayed"
        self._noted.append(NetworkFinding("refused", message))

    def left_over(self) -> list[pb.Exchange]:
        """What was recorded and not asked, in the order of the recording."""
        return self._matcher.left_over()

    def under_way(self) -> list[pb.Exchange]:
        """Recorded exchanges that are asked, whose answers have not come to their end, and that nobody gave up."""
        now = self.clock.monotonic_ns()
        return [
            exchange
            for exchange, connection, last_ns in self._answered
            if not connection.closed and (last_ns is None or last_ns > now)
        ]

    def unanswered(self) -> list[pb.Exchange]:
        """Recorded exchanges that are asked and whose answers never came to their end, given up or not."""
        return [exchange for exchange, _, last_ns in self._answered if last_ns is None]

    def findings(self) -> list[NetworkFinding]:
        """What differed so far. What is left over is only final once the program has ended."""
        times = (finding for _, finding in self._times.values())
        return [*self._noted, *_told(times), *_told(self._order()), *_told(self._left_over())]

    @property
    def asked(self) -> int:
        """Recorded exchanges that have been asked for."""
        return len(self._matcher.asked)

    def asked_by(self) -> dict[str, str]:
        """Who asked for each recorded exchange, by its id: the name of a task or a thread."""
        return {one.exchange.id: one.asker for one in self._matcher.asked}

    @property
    def recorded(self) -> int:
        """Outbound exchanges in the recording."""
        return len(self._matcher.recorded)

    @property
    def begun(self) -> int:
        """Outbound requests of the replay, those that were not recorded included."""
        return self.begun_within("")

    def begun_within(self, within: str) -> int:
        """Those of one inbound request, given by its id; all for ""."""
        asked = sum(not within or one.within == within for one in self._matcher.asked)
        beyond = (one for one in self._noted if one.kind in ("unrecorded", "forked"))
        return asked + sum(not within or one.within == within for one in beyond)

    def _order(self) -> Iterator[NetworkFinding]:
        for one in self._matcher.order_differences():
            message = wording.order_difference(one.first, one.second)
            yield NetworkFinding("order", message, one.first.id, tuple(one.first.call_site))

    def _left_over(self) -> Iterator[NetworkFinding]:
        for exchange in self.left_over():
            yield NetworkFinding("left-over", wording.left_over(exchange), exchange.id, tuple(exchange.call_site))

    def _answer(
        self, connection: Connection, exchange: pb.Exchange, *, continued: bool, asker: Asker | None
    ) -> list[Event]:
        """What comes back for a request whose last byte was written just now."""
        asker = asker or Asker.here()
        exchange.task = asker.task
        exchange.call_site.extend(frame for frame in asker.call_site if not frame.module.startswith("replay."))
        asked = _without_secrets(exchange)
        recorded, question = self._recorded(exchange, asked)
        if recorded is None:
            answer = self._beyond(exchange, asked)
        else:
            self._catch_up(recorded.exchange, recorded.exchange.sent_ns)
            answer = self._of_the_model(question, recorded.exchange) or recorded.exchange
        try:
            from_ns = self._as_recorded(recorded.exchange.sent_ns if recorded is not None else 0)
            events = play(answer, from_ns=from_ns, method=exchange.method, continued=continued)
        except ResponseNotRecorded as error:
            self._noted.append(NetworkFinding("refused", str(error), answer.id, tuple(exchange.call_site)))
            raise self.refuse(error) from None
        if recorded is not None:
            comes_to_an_end = events and (events[-1].kind not in OPEN or is_whole(recorded.exchange))
            last_ns = events[-1].due_ns if comes_to_an_end else None
            self._answered.append((recorded.exchange, connection, last_ns))
        return events

    @property
    def is_awaited(self) -> bool:
        """Whether a connection or an answer is to come, for which the program may be waiting."""
        return self._matcher.reserves or bool(self.under_way())

    def next_asked_ns(self, after_ns: int) -> int | None:
        """When the first of what is not asked yet was asked in the recording, after a time."""
        times = (exchange.started_ns for exchange in self.left_over())
        return min((time_ns for time_ns in times if time_ns > after_ns), default=None)

    def _catch_up(self, exchange: pb.Exchange, asked_ns: int) -> None:
        self.clock.catch_up(asked_ns, set_after(_unanswered_ns(exchange), self._let_go_ns))

    def _as_recorded(self, asked_ns: int) -> int:
        """When something is asked for now: the time in the recording, if that is hardly past. So what came together
        comes together."""
        now = self.clock.monotonic_ns()
        return asked_ns if 0 <= now - asked_ns <= HARDLY_LATE_NS else now

    def _connect_ns(self, exchange: pb.Exchange) -> int:
        began_ns = self._as_recorded(exchange.started_ns)
        return max(0, began_ns + exchange.connect_ns - self.clock.monotonic_ns())

    def _unknown(self, connection: Connection) -> RuntimeReplayError:
        """The error of one who waits for more on ``connection`` than was recorded."""
        exchange = next(exchange for exchange, answered_on, _ in reversed(self._answered) if answered_on is connection)
        error = AnswerNotRecorded(wording.read_on(exchange))
        error.request = str(error)
        return self.refuse(error)

    def _recorded(self, exchange: pb.Exchange, asked: pb.Exchange) -> tuple[Recorded | None, pb.Exchange]:
        """What answers ``asked``, and what a model is to be asked: a prompt with another time has another answer."""
        request = canonical_request(asked)
        recorded = self._matcher.take(request, asked.task)
        if recorded is not None:
            return recorded, exchange
        found = self._matcher.take_but_for_times(request, asked.task, wall_ns=self.clock.wall_ns())
        if found is None:
            return None, exchange
        recorded, times = found
        for one in times:
            self._note_time(recorded.exchange, one)
        secrets = asked.request_body != exchange.request_body  # what is recorded then is not what was sent
        return recorded, exchange if secrets else _with_recorded_body(exchange, recorded.exchange)

    def _note_time(self, recorded: pb.Exchange, difference: TimeDifference) -> None:
        """Once for each field, where it differs most: a program that polls sends its time with every request."""
        largest, _ = self._times.get(difference.field, (-1, None))
        if difference.apart_ns > largest:
            message = wording.time_matched(recorded, difference)
            finding = NetworkFinding("time", message, recorded.id, tuple(recorded.call_site))
            self._times[difference.field] = difference.apart_ns, finding

    def _of_the_model(self, exchange: pb.Exchange, recorded: pb.Exchange) -> pb.Exchange | None:
        """Replayed inference, if it says something else than was recorded."""
        if self._model is None or not asks_a_model(exchange) or recorded.status != 200:
            return None  # a refusal of the server, or a failure before its answer, is none of the model's
        asked = pb.Exchange()
        asked.CopyFrom(exchange)
        asked.chunks.extend(recorded.chunks)
        with self.clock.hold():
            answer = self._model.answer(asked)
        if answer is None:
            return None
        if any(chunk.size > len(chunk.data) for chunk in recorded.chunks):
            return answer
        difference = compare_answers(recorded, answer)
        if difference is None:
            return None
        message = (
            f"the model's answer to {recorded.id} {wording.request_line(recorded)} differs in {difference.field}: "
            f"{wording.RECORDED} {difference.recorded!r}, replayed inference {difference.replayed!r}"
        )
        if difference.wholly:
            message += (
                ". Nothing of it is alike: other weights of that name may have answered then; --answers recorded "
            )
            message += "plays what was said"
        self._noted.append(NetworkFinding("model-answer", message, recorded.id, tuple(recorded.call_site)))
        return answer

    def _beyond(self, exchange: pb.Exchange, asked: pb.Exchange) -> pb.Exchange:
        """What the fork answers to a request that was not recorded. Raises UnrecordedRequest without one."""
        answer = self._fork.handle(exchange) if self._fork is not None else None
        if answer is not None:
            message = f"{wording.request_line(asked)}{wording.asked_by(asked)} was answered by a fork handler"
            self._noted.append(NetworkFinding("forked", message, call_site=tuple(asked.call_site)))
            return answer
        request = canonical_request(asked)
        error = UnrecordedRequest(
            wording.unrecorded(
                asked,
                self._matcher.nearest(request),
                self._matcher.times_recorded(request),
                wall_ns=self.clock.wall_ns(),
            )
        )
        error.request = f"{wording.request_line(asked)}{wording.asked_by(asked)}"
        self._noted.append(NetworkFinding("unrecorded", str(error), call_site=tuple(asked.call_site)))
        raise self.refuse(error)


def _told(findings: Iterator[NetworkFinding]) -> Iterator[NetworkFinding]:
    """The first MAX_TOLD of them, and how many more there are."""
    yield from islice(findings, MAX_TOLD)
    if (first := next(findings, None)) is not None:
        more = 1 + sum(1 for _ in findings)
        what = _MORE[first.kind]
        message = f"{more:,} more were {what}, the first of them {first.exchange_id}"
        yield NetworkFinding(first.kind, message, first.exchange_id)


def _with_recorded_body(exchange: pb.Exchange, recorded: pb.Exchange) -> pb.Exchange:
    """``exchange`` with the body, and the headers that describe it, as they were recorded."""
    question = pb.Exchange()
    question.CopyFrom(exchange)
    question.request_body = recorded.request_body
    del question.request_headers[:]
    question.request_headers.extend(recorded.request_headers)
    return question


def _release(recorded: Recorded | None) -> None:
    if recorded is not None:
        recorded.reserved = False


def _unanswered_ns(exchange: pb.Exchange) -> int | None:
    """When the recorded program let go of an exchange of which nothing had come back, as at a deadline."""
    return exchange.ended_ns if was_let_go(exchange) and not exchange.chunks else None


def _failure(exchange: pb.Exchange, after_ns: int) -> ConnectFailed:
    kind, message = exchange.error, exchange.error_message
    if not kind or (kind == "timeout" and not is_system_timeout(message)):
        kind = "silence"
    return ConnectFailed(kind, message, after_ns)


def _without_secrets(exchange: pb.Exchange) -> pb.Exchange:
    """The request as the recorder would have written it down."""
    scrubbed = pb.Exchange(method=exchange.method, url=scrub_url(exchange.url), task=exchange.task)
    scrubbed.call_site.extend(exchange.call_site)
    named = {header.key.lower(): header.value for header in exchange.request_headers}
    for header in exchange.request_headers:
        scrubbed.request_headers.add(key=header.key, value=scrub_header(header.key, header.value))
    body = scrub_body(
        exchange.request_body,
        content_type=named.get("content-type", ""),
        content_encoding=named.get("content-encoding", ""),
    )
    scrubbed.request_body = body or b""
    return scrubbed
