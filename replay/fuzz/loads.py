"""Hypothesis strategies for fresh loads of an engine: who asks for what, with whom, and who leaves when.

Lengths, times and token ids are drawn at and beside the limits that the engine has; that is all that is known here
about where engines fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from hypothesis import strategies as st

from replay.engine.request import SamplingParams
from replay.engine.schedule import EngineConfig
from replay.scenario.scenario import Scenario, Visit

DrawFn = Callable[[st.SearchStrategy[Any]], Any]

MOST_VISITS = 6
MOST_TOKENS = 4096
"""Of a prompt. Longer ones show nothing that a pool of this size does not, and take long."""

MOST_DRAWN = 160
"""Of an answer."""

ANY_VOCABULARY = 32_000
"""Ids of a model whose vocabulary is not on record."""

_LAST_ARRIVAL = 24

_TEMPERATURES = (0.0, 1.0, 2.0, 1e-4)
_PARAMETERS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("top_k", (0, 1, 2)),
    ("top_p", (1.0, 0.5, 1e-6)),
    ("min_p", (0.0, 0.5)),
    ("presence_penalty", (0.0, 2.0, -2.0)),
    ("frequency_penalty", (0.0, 2.0, -2.0)),
    ("repetition_penalty", (1.0, 2.0, 0.5)),
    ("min_tokens", (0, 1, 8)),
    ("ignore_eos", (False, True)),
)


@dataclass(frozen=True, slots=True)
class _Done:
    """What is done in a load: the engine has other settings, requests leave, some twice, prompts go on after what they
    share, and sampling parameters are set."""

    configured: bool
    leaves: bool
    leaves_again: bool
    goes_on: bool
    parameters: bool


@st.composite
def fresh_loads(draw: DrawFn, like: Scenario) -> Scenario:
    """Requests of their own on the engine of ``like``, which has its configuration or one beside it.

    What is done in a load is drawn first, and most loads leave something out: a failure that comes at once would hide
    what comes after it in all of them. Shrinks toward one short request that stays. Who a server would refuse is among
    them.
    """
    done = _Done(*draw(st.tuples(*[st.booleans()] * len(fields(_Done)))))
    config = draw(_configs(like.config)) if done.configured else like.config
    stems = [draw(_prompts(config, like.vocab_size)) for _ in range(draw(st.integers(1, 2)))]
    count = draw(st.integers(1, MOST_VISITS))
    visits = [draw(_visits(f"req-{number}", config, like.vocab_size, stems, done)) for number in range(count)]
    visits.sort(key=lambda visit: visit.arrives)
    return replace(like, config=config, visits=tuple(visits), notes=())


@st.composite
def _configs(draw: DrawFn, config: EngineConfig) -> EngineConfig:
    """What an operator sets."""
    size = config.block_size
    return replace(
        config,
        prefix_cache=draw(st.booleans()),
        num_blocks=draw(_around((config.num_blocks, 4, config.num_blocks // 2), most=config.num_blocks)),
        max_num_batched_tokens=draw(
            _around((config.max_num_batched_tokens, size, 2 * size), most=config.max_num_batched_tokens)
        ),
        max_num_seqs=draw(_around((config.max_num_seqs, 1, 2), most=config.max_num_seqs)),
    )


@st.composite
def _prompts(draw: DrawFn, config: EngineConfig, vocab_size: int) -> tuple[int, ...]:
    size, pool = config.block_size, config.block_size * config.num_blocks
    limits = (1, size, 2 * size, config.max_num_batched_tokens, pool // 2, pool, config.max_model_len)
    length = draw(_around(limits, most=min(MOST_TOKENS, config.max_model_len)))
    first = draw(st.integers(0, 7))
    most = vocab_size or ANY_VOCABULARY
    return tuple((first * 31 + place * 7) % most for place in range(length))


@st.composite
def _visits(
    draw: DrawFn, name: str, config: EngineConfig, vocab_size: int, stems: list[tuple[int, ...]], done: _Done
) -> Visit:
    prompt = draw(st.sampled_from(stems))
    if done.goes_on:
        cut = draw(_around((len(prompt), config.block_size, 1), most=len(prompt)))
        prompt = (*prompt[:cut], *draw(st.lists(st.integers(0, (vocab_size or ANY_VOCABULARY) - 1), max_size=3)))
    arrives = draw(st.integers(0, _LAST_ARRIVAL))
    sampling = draw(_sampling(config, len(prompt), vocab_size, done))
    visit = Visit(id=name, prompt=prompt, sampling=sampling, arrives=arrives)
    if not (done.leaves and draw(st.booleans())):
        return visit
    chunks = -(-len(prompt) // config.max_num_batched_tokens)
    ends = chunks + sampling.max_tokens
    leaves = arrives + draw(_around((0, chunks, ends), most=ends + 8 if done.leaves_again else ends - 1, least=0))
    again = leaves + draw(st.integers(0, 2)) if done.leaves_again and draw(st.booleans()) else None
    return replace(visit, leaves=leaves, leaves_again=again)


@st.composite
def _sampling(draw: DrawFn, config: EngineConfig, length: int, vocab_size: int, done: _Done) -> SamplingParams:
    size = config.block_size
    room = size - length % size
    values: dict[str, Any] = {"max_tokens": draw(_around((1, room, room + size, MOST_DRAWN), most=MOST_DRAWN))}
    if done.parameters:
        values["temperature"], values["seed"] = draw(st.sampled_from(_TEMPERATURES)), draw(st.integers(0, 3))
        name, choices = draw(st.sampled_from(_PARAMETERS))
        values[name] = draw(st.sampled_from(choices))
    if done.parameters and vocab_size and draw(st.booleans()):
        token = draw(_around((0, vocab_size, 2 * vocab_size), most=2 * vocab_size, least=0))
        if draw(st.booleans()):
            values["logit_bias"] = ((token, draw(st.sampled_from((5.0, -100.0, 100.0)))),)
        else:
            values["stop_token_ids"] = (token,)
    return SamplingParams(**values)


def _around(limits: Iterable[int], *, most: int, least: int = 1) -> st.SearchStrategy[int]:
    """Numbers at and beside the limits, from ``least`` to ``most``, the least first."""
    beside = {limit + change for limit in limits for change in (-1, 0, 1)}
    return st.sampled_from(sorted(number for number in beside if least <= number <= most) or [least])
