"""Which contradictions in a dump make a replay of it meaningless, so that it is refused before it begins.

A record may contradict itself because the dead process was broken, and that is what a replay is for: wrong blocks,
reference counts or ends are compared and reported. What is refused is a record that does not say what to run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dumps.errors import InvalidState, LimitExceeded
from dumps.schema import state_pb2 as pb
from dumps.tensors import from_le32
from dumps.validate import MAX_FINDINGS, Finding, findings
from replay.report import finding

# A dump is untrusted, and these numbers become allocations.
MAX_BLOCKS = 1 << 22
MAX_SLOTS = 1 << 26
MAX_TOKENS = 1 << 22

MOST_TOLD = 10  # rules
MOST_ALIKE = 3  # contradictions of one rule

REMEDY = "pplx-state verify names each contradiction"

# Rules of dumps.validate: who runs, what they say, how they draw, and in which order it happened.
_REFUSED = frozenset(
    {
        "requests.id",
        "requests.token-count",
        "requests.token-id",
        "requests.sampling",
        "requests.digests",
        "schedule.request-index",
        "schedule.step-index",
        "schedule.num-tokens",
        "schedule.twice",
    }
)


def admit(state: pb.RuntimeState) -> list[Finding]:
    """The contradictions that a replay can live with, at most `MAX_FINDINGS` of them.

    Raises `InvalidState` that names the first one with which nothing can be replayed.
    """
    harmless: list[Finding] = []
    for problem in findings(state):
        if problem.rule in _REFUSED:
            raise InvalidState(f"{problem.path}: {problem.message}", remedy=REMEDY)
        if len(harmless) < MAX_FINDINGS:
            harmless.append(problem)
    _check_arrivals(state)
    if state.scheduler.HasField("start"):
        _check_start(state)
    return harmless


def told(problems: Iterable[Finding]) -> list[dict[str, Any]]:
    """The report's findings for the errors among `problems`: the first of each rule, and how many more there are."""
    by_rule: dict[str, list[Finding]] = {}
    for problem in problems:
        if problem.severity == "error":
            by_rule.setdefault(problem.rule, []).append(problem)
    found = []
    for rule, broken in list(by_rule.items())[:MOST_TOLD]:
        found += [finding("invalid-state", f"{p.path}: {p.message}", rule=rule) for p in broken[:MOST_ALIKE]]
        if (more := len(broken) - MOST_ALIKE) > 0:
            found.append(finding("invalid-state", f"{rule}: {more} more like these", remedy=REMEDY, rule=rule))
    return found


def check_sizes(*, num_blocks: int, block_size: int, longest: int) -> None:
    """Raises `LimitExceeded` for a pool or a request larger than any real one, and ValueError for an empty pool."""
    limits = (
        ("num_blocks", num_blocks, MAX_BLOCKS),
        ("num_blocks times block_size", num_blocks * block_size, MAX_SLOTS),
        ("tokens of a request", longest, MAX_TOKENS),
    )
    for name, value, limit in limits:
        if value > limit:
            raise LimitExceeded(f"{name} is {value}, the limit is {limit}", remedy="no engine of today is that large")
    if block_size == 0 or num_blocks == 0:
        raise ValueError("block_size and num_blocks must be at least 1")


def _check_arrivals(state: pb.RuntimeState) -> None:
    """A request arrives once: before the record, or in one step of it."""
    start = state.scheduler.start
    known = {*start.waiting, *(one.request for one in start.running)}
    if len(known) < len(start.waiting) + len(start.running):
        raise InvalidState("scheduler.start: a request stands in it twice", remedy=REMEDY)
    for number, step in enumerate(state.steps):
        for request in step.arrived:
            if request in known:
                raise InvalidState(f"steps[{number}].arrived: request {request} was there before", remedy=REMEDY)
            known.add(request)


def _check_start(state: pb.RuntimeState) -> None:
    """Blocks and lengths of the scheduler state in which the record begins."""
    start, engine = state.scheduler.start, state.engine
    free = from_le32(start.free_blocks)
    held = set()
    for number, one in enumerate(start.running):
        path, blocks = f"scheduler.start.running[{number}]", from_le32(one.block_table)
        held.update(blocks)
        recorded = state.requests[one.request]
        tokens = recorded.num_prompt_tokens + one.num_output_tokens
        if one.num_computed_tokens > len(blocks) * engine.block_size:
            raise InvalidState(
                f"{path}: {one.num_computed_tokens} tokens in {len(blocks)} blocks of {engine.block_size}",
                remedy=REMEDY,
            )
        if recorded.num_prompt_tokens and one.num_computed_tokens > tokens:
            raise InvalidState(f"{path}: {one.num_computed_tokens} of {tokens} tokens are computed", remedy=REMEDY)
    if any(not 0 <= block < engine.num_blocks for block in (*free, *held)):
        raise InvalidState(f"scheduler.start: a block is outside 0 to {engine.num_blocks - 1}", remedy=REMEDY)
    if len(set(free)) < len(free):
        raise InvalidState("scheduler.start.free_blocks: a block stands in it twice", remedy=REMEDY)
    _check_prefix(state)
    if held & set(free):
        raise InvalidState(f"scheduler.start: block {min(held & set(free))} is free and in use", remedy=REMEDY)


def _check_prefix(state: pb.RuntimeState) -> None:
    """What the prefix cache knew where the record begins: each block and each hash once."""
    entries = state.scheduler.start.prefix_hashes
    blocks, hashes = {entry.block for entry in entries}, {entry.hash for entry in entries}
    if len(blocks) < len(entries) or len(hashes) < len(entries):
        raise InvalidState("scheduler.start.prefix_hashes: a block or a hash stands in it twice", remedy=REMEDY)
    if any(block >= state.engine.num_blocks for block in blocks):
        raise InvalidState(
            f"scheduler.start.prefix_hashes: a block is outside 0 to {state.engine.num_blocks - 1}", remedy=REMEDY
        )
