"""What a scheduler decides in a step, and the interfaces between scheduler, executor and engine.

The live scheduler decides from its queues; the recorded one from what a dead process did. Both produce the same
`StepPlan`, so that the executor, the flight recorder and the verdict never ask which one it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from replay.engine.request import FinishCause, FinishReason, Request


class OnExhausted(StrEnum):
    """What to do with a running request for which the pool has no block."""

    TRUNCATE = "truncate"
    PREEMPT = "preempt"
    RAISE = "raise"


class Outcome(StrEnum):
    """What was done, in the end, with a request that found no block."""

    TRUNCATE = "truncate"
    PREEMPT_SELF = "preempt-self"
    PREEMPT_OTHER = "preempt-other"
    RAISE = "raise"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes and policies. ``max_model_len`` counts prompt and output tokens of one request. ``kv_quant_bits`` is 8, or
    0 for a cache in the dtype of the computation."""

    num_blocks: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    on_kv_exhausted: OnExhausted = OnExhausted.PREEMPT
    prefix_cache: bool = False
    kv_quant_bits: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``start .. start + num_tokens`` of one request, to be computed in this step."""

    request: Request
    start: int
    num_tokens: int
    new_blocks: tuple[int, ...] = ()

    @property
    def samples(self) -> bool:
        """Whether the chunk reaches the request's last token, so that the next one is drawn from its logits."""
        return self.start + self.num_tokens == len(self.request.tokens)


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A request asked for ``blocks_needed`` more blocks when ``blocks_free`` were left."""

    request: Request
    blocks_needed: int
    blocks_free: int
    outcome: Outcome
    victim: Request | None = None
    before_chunk: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    request: Request
    reason: FinishReason
    cause: FinishCause


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A request that was admitted took ``blocks``, the first of its table, from the prefix cache: ``num_tokens`` of its
    tokens count as computed. ``copied_from`` is set when the last of them is a private copy, since it will be
    written."""

    request: Request
    num_tokens: int
    blocks: tuple[int, ...]
    copied_from: int | None = None


@dataclass(slots=True)
class StepPlan:
    """One step's decisions, in the order in which they were taken.

    ``finished`` holds what ended while planning (truncation); what ends by its token is reported by `commit`.
    """

    index: int
    chunks: list[Chunk] = field(default_factory=list)
    arrived: list[Request] = field(default_factory=list)
    aborted: list[Finish] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    exhausted: list[Exhausted] = field(default_factory=list)
    finished: list[Finish] = field(default_factory=list)
    prefix_hits: list[PrefixHit] = field(default_factory=list)

    @property
    def copies(self) -> list[tuple[int, int]]:
        """(source, target) blocks that an executor copies before it computes anything of this step."""
        return [(hit.copied_from, hit.blocks[-1]) for hit in self.prefix_hits if hit.copied_from is not None]


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure the model was: the likeliest token ids with their softmax probabilities, likeliest first."""

    candidates: tuple[tuple[int, float], ...]

    @property
    def top(self) -> float:
        return self.candidates[0][1] if self.candidates else 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A drawn token.

    ``digest`` is the blake2b-64 of the float32 logits row; ``finite`` is False when that row held a NaN or +inf, and
    then ``token`` means nothing. ``margin`` is the top-1 minus top-2 logit, ``gap`` the top-1 minus that of the token
    which a replay expected here, ``nll`` the negative log-likelihood of that token. ``confidence`` is there for a
    request whose flags ask for it, and ``early_exit`` says that it reached their threshold.
    """

    token: int
    digest: int | None = None
    finite: bool = True
    margin: float | None = None
    gap: float | None = None
    nll: float | None = None
    confidence: Confidence | None = None
    early_exit: bool = False


class Executor(Protocol):
    """Computes a plan's tokens and draws the next ones."""

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        """Samples by request id, one for each chunk that `samples`. Writes keys and values at the chunks' slots."""
        ...


class StopCheck(Protocol):
    """Decides whether a token that was just appended ends its request by what it says."""

    def __call__(self, request: Request) -> FinishCause | None: ...


class Scheduler(Protocol):
    """Both schedulers. Not thread-safe: the engine's thread alone calls it."""

    config: EngineConfig
    waiting: Sequence[Request]
    running: Sequence[Request]

    def add(self, request: Request) -> None: ...

    def abort(self, request: Request, cause: FinishCause) -> None: ...

    def plan(self) -> StepPlan | None:
        """The next step, or None when there is nothing to run.

        Raises `KVCacheExhausted` under policy RAISE.
        """
        ...

    def commit(self, plan: StepPlan, samples: dict[str, Sample]) -> list[Finish]:
        """Append the drawn tokens, end what they end and free its blocks."""
        ...
