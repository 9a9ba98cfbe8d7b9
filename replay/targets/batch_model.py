"""The model of a batch: loaded once for all replays that want the same, and run for many of them in one call."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from replay.engine.attention import Placed
from replay.engine.loaded import Kernels, LoadedModel
from replay.engine.packing import Computed, forward_all, head_all
from replay.errors import ReplayError
from replay.models.fingerprint import examine
from replay.targets.load import Loaded, load_weights
from replay.targets.lockstep import Seat


@dataclass(frozen=True, slots=True)
class Load:
    """Wish for a model. Equal ``key`` means the same weights, tokenizer, settings and thread count."""

    key: tuple[Any, ...]
    load: Callable[[], Loaded]


@dataclass(frozen=True, slots=True)
class Forward:
    """Wish for the final hidden states of chunks."""

    placed: Sequence[Placed]


@dataclass(frozen=True, slots=True)
class Head:
    """Wish for the logits of hidden states [rows, hidden_size]."""

    hidden: torch.Tensor


class OnSeat:
    """A loaded model's way to its computer, for the task on one seat: see `LoadedModel.shared`."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def forward(self, placed: Sequence[Placed]) -> torch.Tensor:
        rows: torch.Tensor = self._seat.ask(Forward(placed))
        return rows

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._seat.ask(Head(hidden))
        return logits


class BatchModel:
    """Serves the wishes of a batch's replays, see `lockstep.run`. One model is in memory at a time.

    At most ``at_once`` replays hold a KV cache; others that wait for a model are served when one of those has ended.
    """

    def __init__(self, *, at_once: int) -> None:
        self._at_once = at_once
        self._threads = torch.get_num_threads()  # for dumps that do not say with how many they were recorded
        self._key: tuple[Any, ...] | None = None
        self._weights: Loaded | None = None

    def load(self, seat: Seat, folder: Path, *, dtype: str, kernels: Kernels, device: str, threads: int) -> Loaded:
        """Called by a task: the model that runs on ``seat``, shared with all who want the same."""
        key = (identity_of(folder), dtype, kernels, device, threads)

        def load() -> Loaded:
            return load_weights(folder, dtype=dtype, kernels=kernels, device=device, threads=threads or self._threads)

        model, vocabulary = seat.ask(Load(key, load))
        return replace(model, shared=OnSeat(seat)), vocabulary

    def serve(self, seats: Sequence[Seat]) -> None:
        """Logits come before steps, so that all replays meet in the next step; another model comes last of all."""
        heads = [seat for seat in seats if isinstance(seat.wish, Head)]
        forwards = [seat for seat in seats if isinstance(seat.wish, Forward)]
        loads = [seat for seat in seats if isinstance(seat.wish, Load)]
        free = self._at_once - len(heads) - len(forwards)
        if heads:
            self._answer(heads, head_all(self._model, [seat.wish.hidden for seat in heads]))
        elif known := [seat for seat in loads if seat.wish.key == self._key][:free]:
            for seat in known:
                seat.answer(self._weights)
        elif forwards:
            self._answer(forwards, forward_all(self._model, [seat.wish.placed for seat in forwards]))
        else:
            self._load(loads)

    def _load(self, loads: Sequence[Seat]) -> None:
        """Load what the first seat wants, in the place of what nobody uses any more."""
        wish: Load = loads[0].wish
        served = [seat for seat in loads if seat.wish.key == wish.key]
        self._key = self._weights = None
        began = time.perf_counter()
        try:
            self._weights = wish.load()
        except Exception as error:
            for seat in served:
                seat.answer(error=error)
            return
        self._key = wish.key
        spent = time.perf_counter() - began
        for seat in served[: self._at_once]:
            seat.answer(self._weights, seconds=spent / len(served))

    @property
    def _model(self) -> LoadedModel:
        assert self._weights is not None, "who computes has loaded"
        return self._weights[0]

    @staticmethod
    def _answer(seats: Sequence[Seat], computed: Sequence[Computed]) -> None:
        for seat, one in zip(seats, computed, strict=True):
            seat.answer(one.rows, error=one.error, seconds=one.seconds)


def identity_of(folder: Path) -> str:
    """The same for folders that hold the same weights, settings and tokenizer."""
    try:
        parts = [examine(folder).fingerprint]
        for path in sorted(folder.glob("*.json")):
            parts += [path.name, hashlib.sha256(path.read_bytes()).hexdigest()]
    except (OSError, ReplayError):  # then loading it says what is wrong
        return str(folder.resolve())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
