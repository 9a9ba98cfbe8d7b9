"""Requests that find no room, and what is told of the pool."""

from __future__ import annotations

from typing import Any

import pytest

from replay.engine.engine import Engine
from replay.engine.failure import Holder, PoolState
from replay.engine.live import LiveScheduler
from replay.engine.request import Request
from replay.engine.schedule import EngineConfig, OnExhausted, Sample, StepPlan
from replay.engine.shortage import stall_failure
from replay.errors import KVCacheExhausted


class Draws:
    """Draws token 5 for whoever samples."""

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        return {chunk.request.id: Sample(5) for chunk in plan.chunks if chunk.samples}


def engine(**changes: Any) -> Engine:
    facts: dict[str, Any] = {
        "num_blocks": 4,
        "block_size": 4,
        "max_model_len": 100,
        "on_kv_exhausted": OnExhausted.RAISE,
    }
    return Engine(scheduler=LiveScheduler(EngineConfig(**facts | changes)), executor=Draws())


def run_out(served: Engine) -> None:
    while served.step() is not None:
        pass


def request(name: str, length: int) -> Request:
    return Request(id=name, tokens=[7] * length, num_prompt=length)


def test_an_exhausted_pool_is_shown_with_everybody_who_holds_some_of_it():
    served = engine()
    served.add(request("a", 7))
    served.add(request("b", 6))
    with pytest.raises(KVCacheExhausted) as caught:
        run_out(served)
    failure = served.failure_of(caught.value)
    assert failure.request_id == "a"
    assert failure.pool == PoolState(
        blocks_needed=1,
        blocks_free=0,
        num_blocks=4,
        holders=(Holder(request_id="a", blocks=2, tokens=9), Holder(request_id="b", blocks=2, tokens=8)),
    )


def test_an_exception_of_another_kind_has_no_pool():
    assert engine().failure_of(ValueError("x")).pool is None


def test_a_scheduler_is_stuck_when_nothing_runs_and_the_next_does_not_fit():
    served = engine(on_kv_exhausted=OnExhausted.TRUNCATE)
    scheduler = served.scheduler
    stuck = [scheduler.stuck]  # nobody waits
    served.add(request("short", 12))
    served.add(request("long", 17))
    stuck.append(scheduler.stuck)  # the first can be admitted
    served.step()
    stuck.append(scheduler.stuck)  # it runs, and will give its blocks back
    run_out(served)
    stuck.append(scheduler.stuck)
    assert stuck == [False, False, False, True]
    failure = stall_failure(scheduler.waiting[0], scheduler)
    assert (failure.request_id, failure.step) == ("long", scheduler.next_step - 1)
    assert failure.pool == PoolState(
        wait_reason="kv-pool-too-small", blocks_needed=5, blocks_free=4, num_blocks=4, holders=()
    )
