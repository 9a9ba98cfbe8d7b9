"""A scenario: an engine's configuration, the defects in force, and the requests with when they come and leave.

A dump's recorded steps belong to its own requests: take one away, and every step is another one. A scenario holds
what came from outside and nothing that followed from it, so it can be changed and run again. Times are steps of the
engine; see `replay.scenario.play` for what happens when the engine has nothing to do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from replay.engine.quirks import Quirk, parse_quirk
from replay.engine.request import NO_FLAGS, FinishCause, InternalFlags, SamplingParams
from replay.engine.schedule import EngineConfig
from replay.errors import UsageError
from replay.scenario import fields

FORMAT = 1
"""Of `Scenario.to_json`. A reader refuses any other."""

UNKNOWN_TOKEN = -1
"""Stands for a token whose id was not recorded. Other negative ids do, too: equal ones are known to be equal."""

OWN_ENDS = frozenset(
    {
        FinishCause.EOS,
        FinishCause.STOP_TOKEN,
        FinishCause.STOP_STRING,
        FinishCause.EARLY_EXIT,
        FinishCause.NON_FINITE,
    }
)
"""Ends that only a model's numbers tell. All others follow from lengths and blocks."""

REMEDY = "A scenario is written by `Scenario.to_json`; extract it from its dump again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request: what it asks for, when it comes and leaves, and what was answered when it was recorded.

    ``prompt`` has at least one token id; negative ones stand for ids that were not recorded. ``arrives`` is the step
    before which it comes, ``leaves`` the one before which it is ended from outside (None: never), ``leave_cause`` why:
    `FinishCause.CLIENT_GONE`, or TIMEOUT for a deadline. ``leave_rank`` orders those that leave before the same step.
    ``leaves_again`` is the step of a second abort, which only the quirk abort-after-finish notices.

    ``output`` are the token ids that were drawn and ``ends`` which of `OWN_ENDS` ended them (None: none did, or nobody
    saw it). A run without a model answers so, and goes on with filler where an answer outlives its record.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sample_index: int = 0
    flags: InternalFlags = NO_FLAGS
    arrives: int = 0
    leaves: int | None = None
    leave_cause: FinishCause = FinishCause.CLIENT_GONE
    leave_rank: int = 0
    leaves_again: int | None = None
    output: tuple[int, ...] = ()
    ends: FinishCause | None = None

    @property
    def has_prompt_ids(self) -> bool:
        """Whether a model can compute it."""
        return min(self.prompt) >= 0

    @property
    def has_output_ids(self) -> bool:
        return min(self.output, default=0) >= 0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is played. ``visits`` stand in order of arrival, which is how quirks count them.

    ``checks`` says that every step's reads are checked, as in `EngineConfig` of a dump. ``bytes_per_block`` is a fact
    for failures, 0 where unknown. ``notes`` say what extraction had to guess; they take no part in a run nor in
    `digest`, equality and hash.

    Raises `UsageError` for visits out of order, ids that are not unique, and values outside of their range.
    """

    config: EngineConfig
    visits: tuple[Visit, ...]
    quirks: tuple[Quirk, ...] = ()
    checks: bool = False
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int = 0
    bytes_per_block: int = 0
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise UsageError(f"not a scenario: {problem}", remedy=REMEDY)

    def __hash__(self) -> int:
        return int(self.digest, 16)

    @cached_property
    def digest(self) -> str:
        """blake2b of the canonical JSON without notes, 32 hex digits: equal for scenarios that play alike."""
        content = {name: value for name, value in self.to_json().items() if name != "notes"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def visit(self, request_id: str) -> Visit:
        """Raises KeyError."""
        for visit in self.visits:
            if visit.id == request_id:
                return visit
        raise KeyError(request_id)

    def to_json(self) -> dict[str, Any]:
        """A document of JSON types that `from_json` reads back as an equal scenario."""
        return {
            "format": FORMAT,
            "config": asdict(self.config),
            "visits": [_visit_json(visit) for visit in self.visits],
            "quirks": [str(quirk) for quirk in self.quirks],
            "checks": self.checks,
            "eos_token_ids": list(self.eos_token_ids),
            "vocab_size": self.vocab_size,
            "bytes_per_block": self.bytes_per_block,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Any) -> Scenario:
        """Raises `UsageError` that names the place: an unknown or missing key, a wrong type, a value out of range."""
        try:
            known = fields.Object(data, "scenario")
            if (version := known.take("format", int)) != FORMAT:
                raise ValueError(f"scenario.format is {version}, and this version reads {FORMAT}")
            config = fields.build(EngineConfig, known.take("config", dict), "scenario.config")
            visits = tuple(
                fields.build(Visit, visit, f"scenario.visits[{place}]")
                for place, visit in enumerate(known.take("visits", list))
            )
            scenario = cls(
                config=config,
                visits=visits,
                quirks=tuple(parse_quirk(text) for text in known.texts("quirks")),
                checks=known.take("checks", bool),
                eos_token_ids=known.integers("eos_token_ids"),
                vocab_size=known.take("vocab_size", int),
                bytes_per_block=known.take("bytes_per_block", int),
                notes=known.texts("notes"),
            )
            known.end()
        except (ValueError, TypeError) as error:
            raise UsageError(f"not a scenario: {error}", remedy=REMEDY) from error
        return scenario


def answer_tokens(visit: Visit, config: EngineConfig) -> int:
    """The most tokens that a visit's answer can have: by its own limit, the model's, and its recorded end."""
    most = max(config.max_model_len - len(visit.prompt), 1)
    if visit.sampling.max_tokens:
        most = min(most, visit.sampling.max_tokens)
    if visit.ends is not None:
        most = min(most, len(visit.output))
    return most


def size(scenario: Scenario) -> tuple[int, ...]:
    """The order in which smaller is meant; all are counts, and the first that differs decides.

    Requests, quirks, tokens of prompts and answers, blocks in the pool, events (arrivals after step 0 and departures),
    and the step of the last event.
    """
    visits = scenario.visits
    tokens = sum(len(visit.prompt) + answer_tokens(visit, scenario.config) for visit in visits)
    events = [visit.arrives for visit in visits if visit.arrives]
    events += [step for visit in visits for step in (visit.leaves, visit.leaves_again) if step is not None]
    return (len(visits), len(scenario.quirks), tokens, scenario.config.num_blocks, len(events), max(events, default=0))


def _visit_json(visit: Visit) -> dict[str, Any]:
    entry = asdict(visit)
    entry["prompt"], entry["output"] = list(visit.prompt), list(visit.output)
    sampling = entry["sampling"]
    sampling["logit_bias"] = [list(bias) for bias in visit.sampling.logit_bias]
    sampling["stop"], sampling["stop_token_ids"] = list(visit.sampling.stop), list(visit.sampling.stop_token_ids)
    return entry


def _problem(scenario: Scenario) -> str:
    """What is wrong with it, in words; "" where nothing is."""
    config = scenario.config
    sizes = ("num_blocks", "max_model_len", "block_size", "max_num_seqs", "max_num_batched_tokens")
    for name in sizes:
        if getattr(config, name) < 1:
            return f"config.{name} is {getattr(config, name)}, and must be at least 1"
    seen: Mapping[str, Visit] = {visit.id: visit for visit in scenario.visits}
    if len(seen) < len(scenario.visits):
        return "two visits have the same id"
    before = 0
    for visit in scenario.visits:
        if visit.arrives < before:
            return f"visit {visit.id} arrives at step {visit.arrives}, after one that arrives at {before}"
        before = visit.arrives
        if problem := _visit_problem(visit, scenario.vocab_size):
            return f"visit {visit.id}: {problem}"
    return ""


def _visit_problem(visit: Visit, vocab_size: int) -> str:
    if not visit.prompt:
        return "it has no prompt"
    if vocab_size and max(max(visit.prompt), max(visit.output, default=0)) >= vocab_size:
        return f"a token id is outside the vocabulary of {vocab_size}"
    if visit.leaves is not None and visit.leaves < visit.arrives:
        return f"it leaves at step {visit.leaves} and arrives at {visit.arrives}"
    if visit.leaves_again is not None and (visit.leaves is None or visit.leaves_again < visit.leaves):
        return "it leaves again before it left"
    if visit.leave_cause not in (FinishCause.CLIENT_GONE, FinishCause.TIMEOUT):
        return f"nobody leaves because of {visit.leave_cause.value}"
    if visit.ends is not None and visit.ends not in OWN_ENDS:
        return f"{visit.ends.value} is no end that an answer has of its own"
    return ""
