"""How requests, their differences and their order are put into words."""

from __future__ import annotations

import re

from dumps.exchanges.match_key import FieldDifference, TimeDifference
from dumps.exchanges.times import apart_ns
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.runtime.network.match import MAX_TIME_APART_NS, Nearest

RECORDED = "recorded (dump)"
REPLAYED = "replayed (your code)"
MAX_SHOWN = 5

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?", re.ASCII)


def request_line(exchange: pb.Exchange) -> str:
    """ "POST http://host/path"; for a connection that never came about its address."""
    url = printable(exchange.url, 300)
    return f"{printable(exchange.method, 40)} {url}" if exchange.method else f"connection to {url}"


def asked_by(exchange: pb.Exchange) -> str:
    """ " (task 'agent', at agent.py:41 in ask)", as far as it is known."""
    parts = []
    if exchange.task:
        parts.append(f"task {printable(exchange.task, 80)!r}")
    if exchange.call_site:
        frame = exchange.call_site[0]
        parts.append(f"at {printable(frame.filename)}:{frame.line} in {printable(frame.function, 80)}")
    return f" ({', '.join(parts)})" if parts else ""


def unrecorded(asked: pb.Exchange, nearest: Nearest | None, times_recorded: int, *, wall_ns: int) -> str:
    """What an UnrecordedRequest says. ``wall_ns`` is the replay's time of day."""
    lines = ["no recorded exchange answers this request", f"  {REPLAYED}: {request_line(asked)}{asked_by(asked)}"]
    if times_recorded:
        times = "once" if times_recorded == 1 else f"{times_recorded} times"
        lines.append(f"  it was recorded {times}, and each of these has answered already: the program asks once more")
    elif nearest is None:
        lines.append(f"  {RECORDED}: no outbound request at all")
    else:
        exchange, differences = nearest.exchange, nearest.differences
        answered = ": recorded, and answered already" if nearest.answered else ""
        lines.append(f"  nearest {RECORDED}: {exchange.id} {request_line(exchange)}{asked_by(exchange)}{answered}")
        lines.append("  they differ in:")
        for one in differences[:MAX_SHOWN]:
            lines += [
                f"    {one.field}",
                f"      {RECORDED}: {_side(one.one)}",
                f"      {REPLAYED}: {_side(one.other)}",
                *_why(one, wall_ns),
            ]
        if len(differences) > MAX_SHOWN:
            lines.append(f"    and {len(differences) - MAX_SHOWN} more fields")
    return "\n".join(lines)


def _why(difference: FieldDifference, wall_ns: int) -> list[str]:
    """What a difference may come of, where it can be told."""
    times = difference.apart(wall_ns)
    if times is not None and not times.within(MAX_TIME_APART_NS):
        apart, allowed = _duration(times.ns), _duration(MAX_TIME_APART_NS)
        return [f"      these are times {apart} apart; a match allows {allowed}"]
    if times is not None or difference.one is None or difference.other is None:
        return []
    if _NUMBER.sub("0", difference.one) != _NUMBER.sub("0", difference.other):
        return []
    if (ns := _time_in_it(difference.one, difference.other, wall_ns)) is not None:
        return [
            f"      the number in it looks like a time of day, {_duration(ns)} apart; inside an id no time is matched"
        ]
    if not (difference.named_as_a_duration or _is_decimal(difference.one, difference.other)):
        return []
    return [
        "      it differs in a number; computing takes no time in a replay, so durations that the program measures "
        "differ"
    ]


def _is_decimal(one: str, other: str) -> bool:
    return all(
        "." in number
        for pair in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
        if pair[0] != pair[1]
        for number in pair
    )


def _time_in_it(one: str, other: str, wall_ns: int) -> int | None:
    """How far apart the counts since 1970 are in which alone the two differ, in nanoseconds."""
    pairs = [(a, b) for a, b in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True) if a != b]
    found = [apart_ns(a, b, now_ns=wall_ns) for a, b in pairs]
    times = [ns for ns in found if ns is not None]
    return max(times) if times and len(times) == len(found) else None


def time_matched(exchange: pb.Exchange, difference: TimeDifference) -> str:
    apart = difference.apart_ns
    differs = f"differs by {_duration(apart)}" if apart else "is a shorter duration than was recorded"
    why = "computing takes no time on the replay's clock"
    return f"{exchange.id} was matched although {difference.field} {differs}: {why}"


def _duration(ns: int) -> str:
    """ "86 ms", in a unit that leaves little to read."""
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= scale:
            return f"{round(ns / scale, 2 if unit == 's' else 0):,g} {unit}"
    return f"{ns} ns"


def read_on(exchange: pb.Exchange) -> str:
    """What an AnswerNotRecorded says."""
    size = sum(chunk.size for chunk in exchange.chunks)
    after = f"after {size:,} bytes of it" if size else "before any of it came"
    return (
        f"more of the answer to {exchange.id} {request_line(exchange)}{asked_by(exchange)}: the recorded program had "
        f"let go of it {after}, {_duration(exchange.ended_ns - exchange.started_ns)} after it asked"
    )


def left_over(exchange: pb.Exchange) -> str:
    return f"{exchange.id} {request_line(exchange)} was recorded and not asked in the replay{asked_by(exchange)}"


def order_difference(first: pb.Exchange, second: pb.Exchange) -> str:
    """Why it matters: the two may have been a race, or a change of the program."""
    what = (
        f"{first.id} {request_line(first)}{asked_by(first)} was asked before "
        f"{second.id} {request_line(second)}{asked_by(second)}; in the recording it came after it"
    )
    if first.task != second.task and _overlap(first, second):
        return f"{what}. Two tasks had them under way at the same time: their order was never certain"
    if first.task == second.task:
        return f"{what}, in one task: the program asks in another order"
    return f"{what}, when that one had ended: another task now runs ahead"


def _overlap(one: pb.Exchange, other: pb.Exchange) -> bool:
    early, late = sorted((one, other), key=lambda exchange: exchange.started_ns)
    return not early.HasField("ended_ns") or early.ended_ns > late.started_ns


def _side(value: str | None) -> str:
    return "absent" if value is None else value
