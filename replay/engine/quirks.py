"""Imitations of defects that real engines and machines had. All are off unless named.

A quirk is written ``name:key=value,key=value``. It is recorded in the dump and shown in every report, since a failure
made by one is not a failure of the engine.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from replay.engine.engine import EngineHooks, StepOutcome
from replay.engine.kv_store import KVStore
from replay.engine.request import Request
from replay.engine.schedule import StepPlan
from replay.errors import UsageError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuirkKind:
    """A defect that can be imitated. ``parameters`` names its integer parameters and says what each means."""

    name: str
    defect: str
    parameters: Mapping[str, str]


KINDS: dict[str, QuirkKind] = {
    kind.name: kind
    for kind in (
        QuirkKind(
            name="kv-bit-flip",
            defect="A memory error, or a stray write, turns one exponent bit of a cached key, which becomes NaN. "
            "Machines without error correction have done it, and kernels that wrote past their block.",
            parameters={
                "request": "which request, counted from 0 in order of arrival",
                "layer": "layer of the key",
                "position": "token position of the key; the next ones are taken if it has no value between 1 and 2",
                "after_step": "the engine step after which it happens",
            },
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """A quirk with its parameters, as parsed."""

    name: str
    parameters: Mapping[str, int]

    @property
    def detail(self) -> str:
        """The parameters as they are written, for the dump."""
        return ",".join(f"{key}={value}" for key, value in self.parameters.items())

    def __str__(self) -> str:
        return f"{self.name}:{self.detail}"


def parse_quirk(text: str) -> Quirk:
    """Parse ``name:key=value,...``. Raises `UsageError` that says which part is wrong and what would be right."""
    name, _, rest = text.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(f"no quirk is called {name!r}", remedy=_nearest(name, list(KINDS)))
    example = f"{name}:" + ",".join(f"{key}=0" for key in kind.parameters)
    parameters: dict[str, int] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if key not in kind.parameters:
            raise UsageError(f"quirk {name} has no parameter {key!r}", remedy=_nearest(key, list(kind.parameters)))
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


class ActiveQuirk(EngineHooks, Protocol):
    """A quirk at work in an engine. ``happened`` says what it did, and is empty until then."""

    happened: str


def activate(quirk: Quirk, kv: KVStore) -> ActiveQuirk:
    """The hook that imitates the defect on `kv`. Raises `UsageError` when a parameter does not fit this model."""
    return _ACTIVE[quirk.name](quirk, kv)


class KvBitFlip:
    """Flips the top exponent bit of the first key element with magnitude above 1 and below 2, which gives NaN.

    Such an element has all exponent bits but the top one set, so this one flip sets them all. Exactly 1 would become
    infinity, and a score of minus infinity only masks the key.
    """

    def __init__(self, quirk: Quirk, kv: KVStore) -> None:
        self.happened = ""
        self._kv = kv
        self._arrival = quirk.parameters["request"]
        self._layer = quirk.parameters["layer"]
        self._position = quirk.parameters["position"]
        self._after_step = quirk.parameters["after_step"]
        self._seen: list[Request] = []
        self._done = False
        if self._layer >= kv.num_layers:
            raise UsageError(
                f"quirk {quirk.name}: layer {self._layer} is beyond the model's last, {kv.num_layers - 1}",
                remedy="Choose a lower layer.",
            )

    def planned(self, plan: StepPlan) -> None:
        """Learn the order of arrival."""
        if not self._done:
            self._seen.extend(request for request in plan.arrived if request not in self._seen)

    def stepped(self, outcome: StepOutcome) -> None:
        """Flip the bit once ``after_step`` is over and the position is in the cache."""
        if self._done or outcome.plan.index < self._after_step or len(self._seen) <= self._arrival:
            return
        request = self._seen[self._arrival]
        if request.finished:
            self._finish(f"nothing: request {request.id} had ended by step {outcome.plan.index}")
        elif request.num_computed > self._position:
            self._flip(request, outcome.plan.index)

    def _flip(self, request: Request, step: int) -> None:
        for position in range(self._position, request.num_computed):
            slot = request.slot(position, self._kv.block_size)
            key = self._kv.data[self._layer, slot, 0].view(-1)
            candidates = ((key.abs() > 1) & (key.abs() < 2)).nonzero()
            if candidates.numel():
                element = int(candidates[0, 0])
                flip_top_exponent_bit(key, element)
                block, place = divmod(slot, self._kv.block_size)
                self._finish(
                    f"after step {step}: flipped the top exponent bit of key element {element} in layer {self._layer}, "
                    f"block {block}, slot {place} (request {request.id}, position {position}): {float(key[element])}"
                )
                return
            log.warning("kv-bit-flip: no key element between 1 and 2 at position %d, trying the next", position)

    def _finish(self, happened: str) -> None:
        self.happened = happened
        self._done = True
        self._seen.clear()
        log.warning("quirk kv-bit-flip: %s", happened)


def flip_top_exponent_bit(values: torch.Tensor, element: int) -> None:
    """Flip bit 30 of a float32, or bit 14 of a bfloat16, in a contiguous one-dimensional tensor."""
    if values.dtype == torch.float32:
        values.view(torch.int32)[element] ^= 1 << 30
    else:
        values.view(torch.int16)[element] ^= 1 << 14


_ACTIVE: dict[str, Callable[[Quirk, KVStore], ActiveQuirk]] = {"kv-bit-flip": KvBitFlip}


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names
    return f"Did you mean: {', '.join(close)}?"
