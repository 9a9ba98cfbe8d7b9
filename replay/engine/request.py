"""A request inside the engine: its tokens, its sampling parameters, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """Where a request stands. Preempted requests wait again, their blocks gone and their tokens kept."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """What a client is told."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class FinishCause(StrEnum):
    """What really ended a request. Two of them hide behind ``length`` although the client asked for more tokens."""

    EOS = "eos"
    STOP_TOKEN = "stop-token"
    STOP_STRING = "stop-string"
    EARLY_EXIT = "early-exit"
    MAX_TOKENS = "max-tokens"
    KV_POOL_EXHAUSTED = "kv-pool-exhausted"
    MAX_MODEL_LEN = "max-model-len"
    CLIENT_GONE = "client-gone"
    TIMEOUT = "timeout"
    NON_FINITE = "non-finite"
    ENGINE_ERROR = "engine-error"

    @property
    def truncates_silently(self) -> bool:
        """Whether a client sees ``length`` although it never asked for a limit this low."""
        return self in (FinishCause.KV_POOL_EXHAUSTED, FinishCause.MAX_MODEL_LEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. Defaults are those of the OpenAI API, except that nothing limits the output.

    Zero switches ``max_tokens``, ``top_k`` and ``min_p`` off, one switches ``top_p`` and ``repetition_penalty`` off,
    and temperature zero is greedy.
    """

    max_tokens: int = 0
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def problem(self, vocab_size: int) -> tuple[str, str] | None:
        """The first parameter out of its range as (name, what is wrong with it), or None when all are usable."""
        ranges: tuple[tuple[str, bool, str], ...] = (
            ("max_tokens", 0 <= self.max_tokens < 2**32, "must be between 0 and 2^32 - 1"),
            ("min_tokens", 0 <= self.min_tokens < 2**32, "must be between 0 and 2^32 - 1"),
            ("temperature", 0.0 <= self.temperature <= 2.0, "must be between 0 and 2"),
            ("top_k", 0 <= self.top_k < 2**32, "must be between 0 and 2^32 - 1"),
            ("top_p", 0.0 < self.top_p <= 1.0, "must be above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p < 1.0, "must be at least 0 and below 1"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "must be between -2 and 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "must be between -2 and 2"),
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100.0, "must be between 0.01 and 100"),
            ("seed", 0 <= self.seed < 2**64, "must fit in 64 bits"),
        )
        for name, holds, wrong in ranges:
            if not holds:
                return name, f"{wrong}, got {getattr(self, name)}"
        for token, bias in self.logit_bias:
            if not 0 <= token < vocab_size:
                return "logit_bias", f"token id {token} is outside the vocabulary of {vocab_size}"
            if not -100.0 <= bias <= 100.0:
                return "logit_bias", f"bias of token {token} must be between -100 and 100, got {bias}"
        for token in self.stop_token_ids:
            if not 0 <= token < vocab_size:
                return "stop_token_ids", f"token id {token} is outside the vocabulary of {vocab_size}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalFlags:
    """What the header X-PPLX-Internal-Flags asks for.

    ``early_exit`` in (0, 1] ends an answer once the softmax confidence of a token reaches it; None is off.
    ``fallback_trace`` records each decision to go on instead.
    """

    early_exit: float | None = None
    fallback_trace: bool = False


NO_FLAGS = InternalFlags()


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One sequence being generated. The scheduler owns and mutates it; others read.

    ``tokens`` holds prompt and output in one list, since KV positions do not tell them apart; ``num_computed`` of them
    have their keys and values in the cache, at the slots that ``blocks`` names in order of position.
    """

    id: str
    tokens: list[int]
    num_prompt: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sample_index: int = 0
    flags: InternalFlags = field(default_factory=InternalFlags)
    status: Status = Status.WAITING
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    finish_cause: FinishCause | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def output(self) -> list[int]:
        """The tokens drawn so far (a copy)."""
        return self.tokens[self.num_prompt :]

    @property
    def finished(self) -> bool:
        return self.status is Status.FINISHED

    def slot(self, position: int, block_size: int) -> int:
        """Flat slot number of a token position: its physical block times the block size, plus its place in it."""
        return self.blocks[position // block_size] * block_size + position % block_size
