"""Imitations of defects that real engines and machines had. All are off unless named.

A quirk is written ``name:key=value,key=value``, or ``name`` where it has no parameters. It is recorded in the dump and
shown in every report, since a failure made by one is not a failure of the engine. A replay has the same defects of code
in force as the run it replays, or the failure could not come back. Damage to data is never done again: it enters a
replay only through recorded KV contents. Torch-free; what acts on a cache is in `replay.engine.damage`.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

from replay.engine.block_reuse import FreeBlockReuse
from replay.engine.defects import Defects
from replay.engine.engine import EngineHooks
from replay.engine.live import LiveScheduler
from replay.errors import UsageError

if TYPE_CHECKING:
    from replay.engine.kv_store import KVStore

_REQUEST = "which request, counted from 0 in order of arrival"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuirkKind:
    """A defect that can be imitated. ``parameters`` names its integer parameters and says what each means.

    ``defect`` says what happens, ``seen_in`` where it was reported. ``damages_data`` marks what spoils the cache of one
    run; the others are defects of code. ``switch`` is the field of `Defects` that turns one on. ``changes_tokens`` says
    that answers are other ones without it, ``needs_model`` that nothing of it shows in scheduler and block pool, and
    ``mixes_blocks`` that a request reads what others left behind: only computing every step from the first gives that.
    ``at_the_door`` marks checks that a server leaves out: without the defect it would have refused a request, which
    then does not come in a replay either.
    """

    name: str
    defect: str
    seen_in: str
    parameters: Mapping[str, str]
    damages_data: bool = False
    switch: str = ""
    changes_tokens: bool = True
    needs_model: bool = False
    mixes_blocks: bool = False
    at_the_door: bool = False


KINDS: dict[str, QuirkKind] = {
    kind.name: kind
    for kind in (
        QuirkKind(
            name="kv-bit-flip",
            defect="A memory error, or a stray write, turns one exponent bit of a cached key, which becomes NaN.",
            seen_in="Machines without error correction have done it, and kernels that wrote past their block.",
            parameters={
                "request": _REQUEST,
                "layer": "layer of the key",
                "position": "token position of the key; the next ones are taken if it has no value between 1 and 2",
                "after_step": "the engine step after which it happens",
            },
            damages_data=True,
            changes_tokens=False,
            needs_model=True,
        ),
        QuirkKind(
            name="int8-zero-scale",
            defect="The scale of one token's cached keys and values is 0. A kernel that multiplies by its reciprocal "
            "multiplies by infinity: keys and values become infinite, and NaN where the stored integer is 0.",
            seen_in="OpenVINO's GPU kernel for a quantised KV cache made infinite scales from rows without a spread "
            "(pull request 28326); InfiniLM read a KV scale that was never set as 0 (553).",
            parameters={
                "request": _REQUEST,
                "layer": "layer of the scale",
                "position": "token position of the scale",
                "after_step": "the engine step after which it happens",
            },
            damages_data=True,
            changes_tokens=False,
            needs_model=True,
        ),
        QuirkKind(
            name="prefix-leak",
            defect="The prefix cache knows a block from its allocation on. A prefill that is cancelled leaves blocks "
            "registered that were never written, and the next request with that prefix reads what lies in them.",
            seen_in="vLLM registered blocks before the forward pass that fills them; readers of the same step got "
            "uninitialised memory (issue tracker, 37152).",
            parameters={},
            switch="register_early",
            mixes_blocks=True,
        ),
        QuirkKind(
            name="abort-after-finish",
            defect="An abort that arrives after its request has finished raises KeyError, and the engine with it.",
            seen_in="Engines derived from vLLM died of KeyError in the step after cancelled requests "
            "(sendnn-inference 36, tenstorrent vllm 145).",
            parameters={},
            switch="abort_twice",
            changes_tokens=False,
        ),
        QuirkKind(
            name="multinomial",
            defect="Tokens are drawn by torch.multinomial from float16 probabilities. At a temperature of 1e-4 scaled "
            "logits overflow to infinity, softmax gives NaN, and the draw raises RuntimeError.",
            seen_in="vLLM with temperature or top_p 0.0001 (issue 1623).",
            parameters={},
            switch="multinomial",
            needs_model=True,
        ),
        QuirkKind(
            name="free-block-reuse",
            defect="A block is put on the free list while its request still reads it. The next request that needs a "
            "block gets it and writes over it. It is the last of the free list, so that a small pool shows it soon.",
            seen_in="vLLM's block allocator under eviction pressure gave answers with other requests' tokens "
            "(issue 37076); TensorRT-LLM with a host KV cache (8813).",
            parameters={
                "running": "which of the running requests, counted from 0 in order of admission",
                "block": "which block of its table, counted from 0",
                "after_step": "the engine step after which it happens; with no such request or block, nothing does",
            },
            mixes_blocks=True,
        ),
        QuirkKind(
            name="prompt-unchecked",
            defect="A prompt that needs more KV blocks than the whole pool has is queued. It waits for ever, and with "
            "it whoever came later, while nothing runs and the health check answers 200.",
            seen_in="vLLM kept a prompt larger than its KV cache at the head of the queue, and all behind it waited "
            "(issue 39734); so did a plugin of it, with usage at 0 and no error (vllm-rbln 957).",
            parameters={},
            switch="prompt_unchecked",
            changes_tokens=False,
            at_the_door=True,
        ),
        QuirkKind(
            name="token-ids-unchecked",
            defect="Token ids of logit_bias and of stop_token_ids are not compared with the vocabulary. A bias beyond "
            "it is an index out of range in the sampler, and all requests of that step die.",
            seen_in="vLLM's engine died of IndexError (issue 6866, pull request 16529), SGLang's scheduler too (7670); "
            "stop ids crashed it on one kind of device, and elsewhere could write into others' rows (vLLM 54195).",
            parameters={},
            switch="token_ids_unchecked",
            changes_tokens=False,
            needs_model=True,
            at_the_door=True,
        ),
        QuirkKind(
            name="positions-unchecked",
            defect="A max_model_len above the model's positions is served. A model with learned positions has no row "
            "for the first token beyond them, and the step dies; a rotary one goes on to no good, without an error.",
            seen_in="vLLM with VLLM_ALLOW_LONG_MAX_MODEL_LEN: an assertion on the device, or garbage without one (pull "
            "request 44286); Qwen3-32B served above its 40,960 positions (vllm-gb10 7).",
            parameters={},
            switch="positions_unchecked",
            changes_tokens=False,
            needs_model=True,
            at_the_door=True,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """A quirk with its parameters, as parsed."""

    name: str
    parameters: Mapping[str, int]

    @property
    def kind(self) -> QuirkKind:
        return KINDS[self.name]

    @property
    def detail(self) -> str:
        """The parameters as they are written, for the dump."""
        return ",".join(f"{key}={value}" for key, value in self.parameters.items())

    def __str__(self) -> str:
        return f"{self.name}:{self.detail}" if self.parameters else self.name


def parse_quirk(text: str) -> Quirk:
    """Parse ``name:key=value,...``. Raises `UsageError` that says which part is wrong and what would be right."""
    name, colon, rest = text.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(f"no quirk is called {name!r}", remedy=nearest(name, list(KINDS)))
    if not kind.parameters and colon:
        raise UsageError(f"quirk {name} has no parameters, got {rest[:80]!r}", remedy=f"Write it as {name}.")
    example = f"{name}:" + ",".join(f"{key}=0" for key in kind.parameters)
    parameters: dict[str, int] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if key not in kind.parameters:
            raise UsageError(f"quirk {name} has no parameter {key!r}", remedy=nearest(key, list(kind.parameters)))
        if key in parameters:
            raise UsageError(f"quirk {name}: {key} is given twice", remedy=f"Write it once, as in {example}.")
        if not equals or not (value.isascii() and value.isdigit()) or len(value) > 18:
            raise UsageError(
                f"quirk {name}: {key} must be a whole number from 0 up, got {value!r}", remedy=f"As in {example}."
            )
        parameters[key] = int(value)
    missing = [key for key in kind.parameters if key not in parameters]
    if missing:
        raise UsageError(
            f"quirk {name}: {missing[0]} ({kind.parameters[missing[0]]}) is missing", remedy=f"As in {example}."
        )
    return Quirk(name=name, parameters={key: parameters[key] for key in kind.parameters})


def help_text() -> str:
    """All quirks, one paragraph each: how it is written, what it does, where it was seen."""
    lines: list[str] = []
    for kind in KINDS.values():
        lines.append(kind.name + (":" + ",".join(f"{key}=N" for key in kind.parameters) if kind.parameters else ""))
        meanings = (f"{key}: {meaning}" for key, meaning in kind.parameters.items())
        for paragraph in (kind.defect, kind.seen_in, *meanings):
            lines += textwrap.wrap(paragraph, 72, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


class ActiveQuirk(EngineHooks, Protocol):
    """A quirk at work in an engine. ``happened`` says what it did, and is empty until then."""

    happened: str


def activate(quirk: Quirk, kv: KVStore) -> ActiveQuirk:
    """The hook that does a quirk's damage to `kv`. Raises `UsageError` when a parameter does not fit this model.

    Only for quirks that damage data. A hook acts once, however many sessions a server opens.
    """
    from replay.engine.damage import HOOKS  # needs torch

    return HOOKS[quirk.name](quirk, kv)


def code_hooks(quirks: Iterable[Quirk], scheduler: LiveScheduler) -> list[ActiveQuirk]:
    """Hooks of those defects of code that act on a scheduler from outside. They belong to this scheduler."""
    return [FreeBlockReuse(quirk.parameters, scheduler) for quirk in quirks if quirk.name == "free-block-reuse"]


def defects_of(quirks: Iterable[Quirk]) -> Defects:
    """The switches that these quirks turn on."""
    known = {field.name for field in fields(Defects)}
    return Defects(**{quirk.kind.switch: True for quirk in quirks if quirk.kind.switch in known})


def nearest(name: str, names: Sequence[str]) -> str:
    """A remedy that names those of `names` which look most like `name`; where none does, what there is."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    return f"Did you mean: {', '.join(close)}?" if close else f"There are: {', '.join(names)}."
