"""Hypothesis strategies for small changes to a real dump: the neighbours in which its failure, or another, may show."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from dumps.errors import InvalidState
from dumps.schema import state_pb2 as pb
from dumps.strategies.asked import DEPARTURES, Asked, Run
from dumps.strategies.near_program import change_one, changes_of
from dumps.strategies.quirk_places import renumbered

DrawFn = Callable[[st.SearchStrategy[Any]], Any]
Change = Callable[[Run, DrawFn], str]
"""Makes one change, and says what it changed; "" where nothing was there to change."""

MOST_CHANGES = 4
_MOST_STEPS = 1000
"""An arrival or a departure is not moved beyond; the record itself may be longer."""


def near(state: pb.RuntimeState) -> st.SearchStrategy[pb.RuntimeState]:
    """Dumps that differ from ``state`` by up to four small changes, such as a block more or a request less.

    Of a run of an engine: requests as they were asked, with when they come and leave, and nothing computed; its steps
    hold arrivals and departures only, and the ledger says so. `replay.scenario.extract.scenario_of` makes it something
    to run. It is valid where ``state`` is. Answers get limits: one that had an end of its own has its length.
    Of a recorded program: the dump with other results of its tools, and answers in other pieces or cut short.

    Shrinks toward no change at all, and what is changed toward fewer requests, blocks, and tokens.

    Raises `InvalidState` where there is nothing to change: no request with a known arrival, no tool that is over, and
    no answer whose bytes are on record.
    """
    if not state.requests:
        if not changes_of(state):
            raise InvalidState("a dump without requests, tool results and answers has no neighbours")
        return _program(_Original(state))
    Run.of(state)
    return _engine(_Original(state))


@dataclass(frozen=True, slots=True, repr=False)
class _Original:
    """Hypothesis prints the arguments of a strategy, and a dump is a page or a thousand."""

    state: pb.RuntimeState


@st.composite
def _engine(draw: DrawFn, original: _Original) -> pb.RuntimeState:
    run = Run.of(original.state)
    before = [one.request.id for one in run.asked]
    changes = draw(st.lists(st.sampled_from(CHANGES), max_size=MOST_CHANGES))
    notes = [change(run, draw) for change in changes]
    if changes_of(run.base) and draw(st.booleans()):
        notes.append(change_one(run.base, draw))
    changed = run.state("; ".join(filter(None, notes)))
    renumbered(changed, before)
    return changed


@st.composite
def _program(draw: DrawFn, original: _Original) -> pb.RuntimeState:
    changed = pb.RuntimeState()
    changed.CopyFrom(original.state)
    for _ in range(draw(st.integers(0, MOST_CHANGES))):
        change_one(changed, draw)
    return changed


def _remove(run: Run, draw: DrawFn) -> str:
    if len(run.asked) < 2:
        return ""
    gone = run.asked.pop(draw(st.integers(0, len(run.asked) - 1)))
    return f"{gone.request.id} does not come"


def _prompt_length(run: Run, draw: DrawFn) -> str:
    one, engine = _some(run, draw), run.engine
    size = max(engine.block_size, 1)
    whole = one.length // size * size
    limits = (one.length, 1, whole, whole + size, engine.max_model_len, size * engine.num_blocks)
    if not (length := _around(draw, limits, most=engine.max_model_len, but=one.length)):
        return ""
    one.resize(length)
    return f"{one.request.id} asks with {length} tokens"


def _answer_length(run: Run, draw: DrawFn) -> str:
    one, engine = _some(run, draw), run.engine
    size, now = max(engine.block_size, 1), one.request.sampling.max_tokens
    to_block = size - one.length % size
    limits = (now, 1, to_block, to_block + size, engine.max_model_len - one.length)
    if not (most := _around(draw, limits, most=engine.max_model_len, but=now)):
        return ""
    one.request.sampling.max_tokens = most
    return f"{one.request.id} asks for at most {most} tokens"


def _num_blocks(run: Run, draw: DrawFn) -> str:
    """Around what there is, and what one request or all of them need."""
    engine = run.engine
    size = max(engine.block_size, 1)
    prompts = [-(-one.length // size) for one in run.asked]
    wholes = [-(-(one.length + one.request.sampling.max_tokens) // size) for one in run.asked]
    limits = (engine.num_blocks, *prompts, *wholes, sum(prompts), sum(wholes))
    if not (blocks := _around(draw, limits, most=2 * engine.num_blocks, but=engine.num_blocks)):
        return ""
    engine.num_blocks, run.free_blocks = blocks, None
    return f"{blocks} blocks"


def _block_size(run: Run, draw: DrawFn) -> str:
    now = run.engine.block_size
    if not (size := _around(draw, (1, 2, now, now // 2, 2 * now), most=2 * now, but=now)):
        return ""
    run.engine.block_size = size
    return f"blocks of {size} tokens"


def _chunk_budget(run: Run, draw: DrawFn) -> str:
    engine = run.engine
    limits = (engine.max_num_batched_tokens, 1, engine.block_size, *(one.length for one in run.asked), len(run.asked))
    most = 2 * engine.max_num_batched_tokens
    if not (budget := _around(draw, limits, most=most, but=engine.max_num_batched_tokens)):
        return ""
    engine.max_num_batched_tokens = budget
    return f"at most {budget} tokens in a step"


def _max_num_seqs(run: Run, draw: DrawFn) -> str:
    engine = run.engine
    limits = (1, len(run.asked), engine.max_num_seqs)
    if not (most := _around(draw, limits, most=engine.max_num_seqs + 1, but=engine.max_num_seqs)):
        return ""
    engine.max_num_seqs = most
    return f"at most {most} requests at once"


def _arrival(run: Run, draw: DrawFn) -> str:
    """Sooner, later, with another one, or right after it. Who has left by then leaves as it comes."""
    one = _some(run, draw)
    steps = _around_steps((one.arrives, *(other.arrives for other in run.asked)))
    one.arrives = draw(st.sampled_from(steps))
    one.leaves = [(max(step, one.arrives), cause) for step, cause in one.leaves]
    return f"{one.request.id} comes before step {run.first + one.arrives}"


def _order(run: Run, draw: DrawFn) -> str:
    """Two that come together change places."""
    pairs = [place for place in range(1, len(run.asked)) if run.asked[place].arrives == run.asked[place - 1].arrives]
    if not pairs:
        return ""
    place = draw(st.sampled_from(pairs))
    run.asked[place - 1 : place + 1] = reversed(run.asked[place - 1 : place + 1])
    return f"{run.asked[place - 1].request.id} comes before {run.asked[place].request.id}"


def _abort(run: Run, draw: DrawFn) -> str:
    """Leaves, leaves at another step, stays, or is aborted once more."""
    one = _some(run, draw)
    kinds = ["leaves", "stays", "again"] if one.leaves else ["leaves"]
    kind = draw(st.sampled_from(kinds))
    if kind == "stays":
        one.leaves = []
        return f"{one.request.id} stays"
    last = one.leaves[-1][0] if one.leaves else one.arrives
    known = (step for other in run.asked for step in (other.arrives, *(step for step, _ in other.leaves)))
    steps = [step for step in _around_steps((last, *known)) if step >= (last if kind == "again" else one.arrives)]
    step, cause = draw(st.sampled_from(steps)), draw(st.sampled_from(DEPARTURES))
    one.leaves = [*(one.leaves[:1] if kind == "again" else []), (step, cause)]
    return f"{one.request.id} leaves before step {run.first + step}"


def _double(run: Run, draw: DrawFn) -> str:
    one = _some(run, draw)
    taken = {other.request.id for other in run.asked}
    name = next(name for number in range(2, len(taken) + 3) if (name := f"{one.request.id}-{number}") not in taken)
    run.asked.insert(run.asked.index(one) + 1, one.copy(name))
    return f"{name} is {one.request.id} once more"


def _share(run: Run, draw: DrawFn) -> str:
    """One prompt begins as another one does, for about a whole number of blocks."""
    known = [one for one in run.asked if one.tokens]
    if len(known) < 2:
        return ""
    one, other = draw(st.permutations(known))[:2]
    ours, theirs, size = one.tokens or [], other.tokens or [], max(run.engine.block_size, 1)
    limits = (size, 2 * size, min(len(ours), len(theirs)))
    same = _around(draw, limits, most=min(len(ours), len(theirs)), but=0)
    one.say([*theirs[:same], *ours[same:]])
    return f"{one.request.id} begins as {other.request.id} does, for {same} tokens"


def _prefix_cache(run: Run, draw: DrawFn) -> str:
    run.engine.prefix_cache = not run.engine.prefix_cache
    return f"prefix cache {'on' if run.engine.prefix_cache else 'off'}"


def _sampling(run: Run, draw: DrawFn) -> str:
    one = _some(run, draw)
    name, values = draw(st.sampled_from(_PARAMETERS))
    value = draw(st.sampled_from(values))
    setattr(one.request.sampling, name, value)
    return f"{one.request.id} has {name} {value}"


def _free_order(run: Run, draw: DrawFn) -> str:
    """The pool is untouched, and hands out its blocks in another order."""
    blocks = list(range(run.engine.num_blocks))
    turn = draw(st.integers(1, max(len(blocks) - 1, 1)))
    run.free_blocks = blocks[turn:] + blocks[:turn] if draw(st.booleans()) else blocks[::-1]
    return f"the pool hands out block {run.free_blocks[0]} first"


CHANGES: tuple[Change, ...] = (
    _remove,
    _prompt_length,
    _answer_length,
    _num_blocks,
    _block_size,
    _chunk_budget,
    _max_num_seqs,
    _arrival,
    _order,
    _abort,
    _sampling,
    _share,
    _prefix_cache,
    _free_order,
    _double,
)
"""Those that take something away first."""

_PARAMETERS: tuple[tuple[str, tuple[float | bool, ...]], ...] = (
    ("temperature", (0.0, 1.0, 2.0, 1e-5)),
    ("top_k", (0, 1, 2)),
    ("top_p", (1.0, 0.5, 1e-6)),
    ("min_p", (0.0, 0.5)),
    ("presence_penalty", (0.0, 2.0, -2.0)),
    ("frequency_penalty", (0.0, 2.0, -2.0)),
    ("repetition_penalty", (1.0, 2.0, 0.5)),
    ("seed", (0, 1, 2**64 - 1)),
    ("min_tokens", (0, 1, 8)),
    ("ignore_eos", (False, True)),
)


def _some(run: Run, draw: DrawFn) -> Asked:
    return run.asked[draw(st.integers(0, len(run.asked) - 1))]


def _around(draw: DrawFn, limits: Iterable[int], *, most: int, but: int) -> int:
    """One of the numbers at or beside ``limits``, from 1 to ``most``, the least first; 0 where there is none."""
    beside = {limit + change for limit in limits for change in (-1, 0, 1)}
    found = sorted(number for number in beside - {but} if 1 <= number <= most)
    chosen: int = draw(st.sampled_from(found)) if found else 0
    return chosen


def _around_steps(steps: Iterable[int]) -> list[int]:
    steps = list(steps)
    longest = max(*steps, _MOST_STEPS)
    return sorted({min(max(step + change, 0), longest) for step in steps for change in (-1, 0, 1, 2)})
