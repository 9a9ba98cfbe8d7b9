"""Quirks that damage a KV cache: one bit of a key flipped, one scale set to 0."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from replay.engine.engine import StepOutcome
from replay.engine.kv_store import KVStore
from replay.engine.request import Request
from replay.engine.schedule import StepPlan
from replay.errors import UsageError

if TYPE_CHECKING:
    from replay.engine.quirks import ActiveQuirk, Quirk

log = logging.getLogger(__name__)


class _Damage:
    """Waits for a request, a step and a position, then lets `_damage` do it, once."""

    def __init__(self, quirk: Quirk, kv: KVStore) -> None:
        self.happened = ""
        self._name = quirk.name
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
        """Do the damage once ``after_step`` is over and the position is in the cache."""
        if self._done or outcome.plan.index < self._after_step or len(self._seen) <= self._arrival:
            return
        request = self._seen[self._arrival]
        if request.finished:
            self._finish(f"nothing: request {request.id} had ended by step {outcome.plan.index}")
        elif request.num_computed > self._position and (done := self._damage(request)):
            self._finish(f"after step {outcome.plan.index}: {done}")

    def _damage(self, request: Request) -> str:
        """Do it, and say what was done and where; an empty text where it was not possible yet."""
        raise NotImplementedError

    def _place(self, request: Request, position: int) -> str:
        block, slot = divmod(request.slot(position, self._kv.block_size), self._kv.block_size)
        return f"in layer {self._layer}, block {block}, slot {slot} (request {request.id}, position {position})"

    def _finish(self, happened: str) -> None:
        self.happened = happened
        self._done = True
        self._seen.clear()
        log.warning("quirk %s: %s", self._name, happened)


class KvBitFlip(_Damage):
    """Flips the top exponent bit of the first key element with magnitude above 1 and below 2, which gives NaN.

    Such an element has all exponent bits but the top one set, so this one flip sets them all. Exactly 1 would become
    infinity, and a score of minus infinity only masks the key.
    """

    def __init__(self, quirk: Quirk, kv: KVStore) -> None:
        super().__init__(quirk, kv)
        if not kv.data.is_floating_point():
            raise UsageError(
                "quirk kv-bit-flip: an int8 cache has no exponent bits",
                remedy="Use int8-zero-scale, or a cache without quantisation.",
            )

    def _damage(self, request: Request) -> str:
        for position in range(self._position, request.num_computed):
            key = self._kv.data[self._layer, request.slot(position, self._kv.block_size), 0].view(-1)
            candidates = ((key.abs() > 1) & (key.abs() < 2)).nonzero()
            if candidates.numel():
                element = int(candidates[0, 0])
                flip_top_exponent_bit(key, element)
                place = self._place(request, position)
                return f"flipped the top exponent bit of key element {element} {place}: {float(key[element])}"
            log.warning("kv-bit-flip: no key element between 1 and 2 at position %d, trying the next", position)
        return ""


def flip_top_exponent_bit(values: torch.Tensor, element: int) -> None:
    """Flip bit 30 of a float32, or bit 14 of a bfloat16, in a contiguous one-dimensional tensor."""
    if values.dtype == torch.float32:
        values.view(torch.int32)[element] ^= 1 << 30
    else:
        values.view(torch.int16)[element] ^= 1 << 14


class Int8ZeroScale(_Damage):
    """Makes the factors of one token's keys and values infinite, in one layer: what 1 / 0 gives to a kernel that keeps
    the reciprocal of a scale of 0."""

    def __init__(self, quirk: Quirk, kv: KVStore) -> None:
        super().__init__(quirk, kv)
        if kv.scales is None:
            raise UsageError(
                "quirk int8-zero-scale: this cache has no scales",
                remedy="Serve with --kv-quant-bits 8.",
            )
        self._scales = kv.scales

    def _damage(self, request: Request) -> str:
        slot = request.slot(self._position, self._kv.block_size)
        self._scales[self._layer, slot] = float("inf")
        return f"the scale became 0 and its reciprocal infinite {self._place(request, self._position)}"


HOOKS: dict[str, Callable[[Quirk, KVStore], ActiveQuirk]] = {
    "kv-bit-flip": KvBitFlip,
    "int8-zero-scale": Int8ZeroScale,
}
"""By the quirk's name."""
