"""The quirk free-block-reuse: a block that its request still reads is put on the free list."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from replay.engine.engine import StepOutcome
from replay.engine.live import LiveScheduler
from replay.engine.schedule import StepPlan

log = logging.getLogger(__name__)


class FreeBlockReuse:
    """Drops one reference to one block of one running request's table after one step, and leaves the table as it is.

    What follows is the engine's own doing: the block goes to the end of the free list, is handed out again, is written
    over, and is released a second time when its first owner ends. It depends on the scheduler's state after that step
    alone, so a replay that reaches the state does the same.
    """

    def __init__(self, parameters: Mapping[str, int], scheduler: LiveScheduler) -> None:
        self.happened = ""
        self._scheduler = scheduler
        self._running = parameters["running"]
        self._block = parameters["block"]
        self._after_step = parameters["after_step"]

    def planned(self, plan: StepPlan) -> None:
        """Nothing: it acts between steps."""

    def stepped(self, outcome: StepOutcome) -> None:
        if outcome.plan.index != self._after_step:
            return
        running = self._scheduler.running
        if self._running >= len(running) or self._block >= len(running[self._running].blocks):
            self.happened = f"nothing: no block {self._block} of a running request {self._running}"
        else:
            request = running[self._running]
            block = request.blocks[self._block]
            self._scheduler.pool.release([block])
            self.happened = f"after step {self._after_step}: freed block {block} under request {request.id}"
        log.warning("quirk free-block-reuse: %s", self.happened)
