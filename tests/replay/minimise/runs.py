"""Runs that fail, as dumps and as scenarios, and trials of them in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from replay.engine.quirks import parse_quirk
from replay.engine.request import SamplingParams
from replay.engine.schedule import EngineConfig, OnExhausted
from replay.isolate.result import Result
from replay.minimise.others import Others
from replay.minimise.search import Search
from replay.minimise.trial import run
from replay.minimise.trials import Bench, Target, Trials
from replay.minimise.work import Work
from replay.scenario.play import play
from replay.scenario.record import record
from replay.scenario.scenario import Scenario, Visit
from replay.signature import Identity, Signature
from tests.incidents import incident

CONFIG = EngineConfig(num_blocks=24, max_model_len=120, block_size=4, max_num_batched_tokens=16)
TWO_STEPS = tuple(range(3, 27))
"""A prompt that takes two steps of prefill."""


def visit(number: int, length: int = 6, limit: int = 6, **changes: Any) -> Visit:
    prompt = tuple((7 * number + 11 * place) % 300 + 3 for place in range(length))
    made = Visit(id=f"r{number}", prompt=prompt, sampling=SamplingParams(max_tokens=limit, seed=number))
    return replace(made, output=tuple(range(5, 5 + limit)), **changes)


def scenario(*visits: Visit, quirks: tuple[str, ...] = (), checks: bool = False, **config: Any) -> Scenario:
    return Scenario(
        config=replace(CONFIG, **config),
        visits=visits,
        quirks=tuple(map(parse_quirk, quirks)),
        checks=checks,
        eos_token_ids=(2,),
        vocab_size=320,
        bytes_per_block=64,
    )


def leak(others: int = 3) -> Scenario:
    """A prefill that is cancelled, and somebody with the same prompt, among others."""
    return scenario(
        *(visit(number, arrives=number) for number in range(others)),
        visit(98, arrives=12, leaves=13, prompt=TWO_STEPS),
        visit(99, arrives=13, prompt=(*TWO_STEPS, 31, 32)),
        quirks=("prefix-leak", "abort-after-finish"),
        checks=True,
        prefix_cache=True,
        num_blocks=64,
        kv_quant_bits=8,
    )


def exhaustion() -> Scenario:
    """A pool that runs empty under the policy raise, with nobody to blame alone."""
    visits = [visit(number, length=8, limit=40, arrives=number) for number in range(4)]
    return scenario(*visits, on_kv_exhausted=OnExhausted.RAISE)


def failure_of(made: Scenario) -> Identity:
    """The identity of what a scenario shows without a model."""
    signature = play(made).signature
    assert signature is not None
    return signature.identity


def dump_of(made: Scenario, path: Path) -> Path:
    like, _ = incident("kv-overflow")
    like.model.vocab_size = 320
    record(made, path, like, wanted=failure_of(made))
    return path


class Here(Trials):
    """Trials in this process: the same job, without the seconds that a worker takes to start."""

    def _run(self, target: Target, job: dict[str, Any]) -> Result:
        return Result(report=run(job, lambda event: None))


@contextlib.contextmanager
def searching(
    made: Scenario,
    folder: Path,
    *,
    trials: Callable[..., Trials] = Here,
    engine: Target | None = None,
    on_stage: Callable[[str, Scenario], None] = lambda stage, best: None,
    **options: Any,
) -> Iterator[tuple[Search, Trials, Others]]:
    """A search for the failure of ``made``, in a folder that need not be there. An ``engine`` has no model either."""
    folder.mkdir(exist_ok=True)
    dump = dump_of(made, folder / "dump.pplx")
    work = Work(folder / "work", {})
    bench = Bench(dump=dump, wanted=failure_of(made))
    others = Others(folder / "others")
    with contextlib.closing(work), trials(bench, work, **{"trial_s": 30.0, **options}) as opened:
        yield Search(opened, work, others, engine=engine, on_stage=on_stage), opened, others


def shows(made: Scenario, identity: Identity) -> bool:
    failures = play(made, wanted=identity).failures
    return bool(failures) and Signature.of(failures[-1]).identity == identity
