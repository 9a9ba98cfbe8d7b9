"""Requests that hold the time of day: matched though the replay's clock leaves out computing, and told."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.clock import VirtualClock
from replay.runtime.errors import UnrecordedRequest
from replay.runtime.network.network import Network
from replay.targets.app.conclude import conclude
from replay.targets.app.sought import Sought
from replay.targets.expected import own_signature
from tests.small_programs import SmallPrograms, play, says, state_of

NOW = datetime(2026, 12, 1, 1, 6, 1, 31295, tzinfo=UTC)
WALL_NS = (NOW - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def after(ms: float) -> str:
    return (NOW + timedelta(milliseconds=ms)).isoformat()


def posted(name: str, body: Any, **fields: Any) -> pb.Exchange:
    exchange = pb.Exchange(id=name, method="POST", url="http://h/a", direction="out", framing="wire", status=200)
    exchange.request_headers.add(key="Content-Type", value="application/json")
    exchange.request_body = json.dumps(body).encode()
    exchange.ended_ns = 2
    for field, value in fields.items():
        setattr(exchange, field, value)
    return exchange


def network(*exchanges: pb.Exchange, wall_ns: int = WALL_NS, **how: Any) -> Network:
    clock = VirtualClock(started_ns=10**12, wall_minus_monotonic_ns=wall_ns - 10**12)
    return Network(exchanges, clock=clock, **how)


def post(world: Network, body: Any, path: str = "/a") -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    world.connect("h", 80, tls=False).send(head.encode() + data)


def left(world: Network) -> list[str]:
    return [one.id for one in world.left_over()]


def test_a_time_that_is_early_by_what_was_computed_is_matched_and_told() -> None:
    world = network(posted("x1", {"k": 1}), posted("x2", {"nested": {"ts": after(86)}, "k": 2}))
    post(world, {"nested": {"ts": after(0)}, "k": 2})
    assert left(world) == ["x1"]
    assert world.refusals == []
    assert (world.asked, world.begun) == (1, 1)
    finding, _ = world.findings()
    assert (finding.kind, finding.exchange_id) == ("time", "x2")
    assert finding.message == (
        "x2 was matched although body.nested.ts differs by 86 ms: computing takes no time on the replay's clock"
    )


def test_each_field_is_told_once_with_its_largest_distance() -> None:
    recorded = [posted(f"x{at}", {"ts": after(ms), "at": after(1)}) for at, ms in enumerate([40, 90, 1500])]
    world = network(*recorded)
    for _ in recorded:
        post(world, {"ts": after(0), "at": after(1)})
    [finding] = world.findings()
    assert "x2 was matched although body.ts differs by 1.5 s:" in finding.message


def test_an_exact_match_goes_first_then_the_nearest_of_the_own_task() -> None:
    def world() -> Network:
        return network(
            posted("x1", {"ts": after(50)}, task="red"),
            posted("x2", {"ts": after(60)}, task="blue"),
            posted("x3", {"ts": after(0)}, task="red"),
            posted("x4", {"ts": after(70)}, task="blue"),
        )

    exact = world()
    post(exact, {"ts": after(0)})
    assert left(exact) == ["x1", "x2", "x4"]
    assert exact.findings()[0].kind != "time"

    async def ask(own: Network) -> None:
        post(own, {"ts": after(10)})

    async def program(own: Network) -> None:
        for _ in range(3):
            await asyncio.create_task(ask(own), name="blue")

    own = world()
    asyncio.run(program(own))
    assert left(own) == ["x1"]


def test_of_two_that_differ_in_times_alone_the_nearer_one_answers() -> None:
    """A changed program may leave out the earlier calls of a loop, and make the last."""
    world = network(
        posted("x1", {"ts": after(0)}), posted("x2", {"ts": after(2000)}), posted("x3", {"ts": after(4600)})
    )
    post(world, {"ts": after(4500)})
    assert left(world) == ["x1", "x2"]


def test_a_time_in_minutes_may_be_a_whole_minute_early() -> None:
    minutes = [(NOW + timedelta(minutes=late)).strftime("%Y-%m-%dT%H:%MZ") for late in (0, 1, 2)]
    world = network(posted("x1", {"at": minutes[1]}))
    post(world, {"at": minutes[0]})
    assert left(world) == []
    with pytest.raises(UnrecordedRequest, match=r"these are times 120 s apart"):
        post(network(posted("x1", {"at": minutes[2]})), {"at": minutes[0]})


def test_a_duration_that_the_program_measured_is_shorter_here() -> None:
    world = network(posted("x1", {"latency_ms": 412, "took": {"read": 0.41213}}))
    post(world, {"latency_ms": 0, "took": {"read": 0.00001}})
    assert left(world) == []
    assert [one.message.partition(":")[0] for one in world.findings()] == [
        "x1 was matched although body.latency_ms is a shorter duration than was recorded",
        "x1 was matched although body.took.read is a shorter duration than was recorded",
    ]


@pytest.mark.parametrize(
    ("recorded", "asked", "told"),
    [
        ({"latency_ms": 4}, {"latency_ms": 12}, "durations that the program measures differ"),
        ({"seen": {"read": 0.41213}}, {"seen": {"read": 0.25}}, "durations that the program measures differ"),
        ({"run": "run-1796087161-a"}, {"run": "run-1796087160-a"}, "looks like a time of day, 1 s apart"),
        ({"user": 17}, {"user": 99}, ""),
    ],
)
def test_a_number_that_cannot_be_the_same_says_why(recorded: Any, asked: Any, told: str) -> None:
    with pytest.raises(UnrecordedRequest) as caught:
        post(network(posted("x1", recorded)), asked)
    assert told in str(caught.value)
    assert told or "number" not in str(caught.value)


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [
        ({"ts": after(86), "k": 1}, {"ts": after(0), "k": 2}),
        ({"date": "2026-12-01"}, {"date": "2026-11-30"}),
        ({"id": 12345}, {"id": 12346}),
    ],
)
def test_another_difference_is_one(recorded: Any, asked: Any) -> None:
    world = network(posted("x1", recorded))
    with pytest.raises(UnrecordedRequest) as caught:
        post(world, asked)
    assert "these are times" not in str(caught.value)


def test_a_time_of_another_day_is_no_time_of_this_program() -> None:
    world = network(posted("x1", {"ts": after(86)}), wall_ns=WALL_NS + 2 * 86_400 * 10**9)
    with pytest.raises(UnrecordedRequest):
        post(world, {"ts": after(0)})


def test_times_too_far_apart_are_called_so() -> None:
    world = network(posted("x1", {"ts": after(25_000)}))
    with pytest.raises(UnrecordedRequest, match=r"these are times 25 s apart; a match allows 10 s"):
        post(world, {"ts": after(0)})


def test_the_nearest_is_one_to_the_same_address_though_it_has_answered() -> None:
    world = network(posted("x1", {"q": 1}), posted("x2", {}, method="GET", url="http://h/rates"))
    post(world, {"q": 1})
    with pytest.raises(UnrecordedRequest) as caught:
        post(world, {"q": 2})
    assert "nearest recorded (dump): x1 POST http://h/a: recorded, and answered already" in str(caught.value)
    assert "body.q" in str(caught.value)


def test_of_the_same_address_one_that_has_not_answered_is_nearer() -> None:
    world = network(posted("x1", {"q": 1}), posted("x2", {"q": 1, "more": 1}))
    post(world, {"q": 1})
    with pytest.raises(UnrecordedRequest, match=r"nearest recorded \(dump\): x2 POST http://h/a\n"):
        post(world, {"q": 2})


class Listening:
    def __init__(self) -> None:
        self.asked: list[pb.Exchange] = []

    def answer(self, exchange: pb.Exchange) -> pb.Exchange | None:
        self.asked.append(exchange)
        return None


def test_a_model_is_asked_with_the_recorded_time() -> None:
    """A prompt with another time may have another answer, and that would be no difference of the model."""
    model, path = Listening(), "/v1/chat/completions"
    recorded = {"messages": [{"role": "user", "content": f"It is {after(86)} now."}]}
    world = network(posted("x1", recorded, url=f"http://h{path}"), model=model)
    post(world, {"messages": [{"role": "user", "content": f"It is {after(0)} now."}]}, path)
    assert [json.loads(one.request_body) for one in model.asked] == [recorded]


PROGRAM = """
import datetime, urllib.parse

def computed(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

def main(url, work, number):
    get(url + "/first")
    computed(work)
    query = urllib.parse.urlencode({"at": datetime.datetime.now().isoformat(), "number": number})
    get(f"{url}/second?{query}")
    computed(work)
    body = {"sent": {"s": time.time(), "ms": int(time.time() * 1000), "iso": str(datetime.datetime.now())}}
    request = urllib.request.Request(url + "/third", json.dumps(body).encode())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        raise ValueError(answer.read().decode())
"""


def test_a_recorded_program_that_sends_the_time_is_reproduced(tmp_path: Any) -> None:
    programs = SmallPrograms(tmp_path)
    name = programs.write(PROGRAM)
    dump, url = programs.record_served(name, says("A"), says("B"), says("C"), work=0.03, number=1)
    state = state_of(dump)

    def replayed(number: int) -> tuple[str, list[str]]:
        with programs.importable():
            env, outcome = play(dump, programs.module(name).main, url=url, work=0, number=number)
            found = conclude(Sought(state=state, signature=own_signature(state)), env, outcome)
        return found.decision.verdict.value, [finding.message for finding in env.findings() if finding.code == "time"]

    verdict, told = replayed(1)
    assert verdict == "reproduced"
    assert [message.split(" differs by ")[0] for message in told] == [
        "x2 was matched although query.at",
        *(f"x3 was matched although {field}" for field in ("body.sent.iso", "body.sent.ms", "body.sent.s")),
    ]
    assert replayed(2) == ("diverged", [])
