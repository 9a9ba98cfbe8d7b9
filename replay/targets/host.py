"""What a replay gets from the place where it runs. Free of torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """``clock`` gives the seconds that budget and timings are counted in. ``load`` stands in for
    `replay.targets.load.load_weights`, where several replays share a model."""

    clock: Callable[[], float] = time.perf_counter
    load: Callable[..., Any] | None = None


ALONE = Host()
"""A process of its own."""
