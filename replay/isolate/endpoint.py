"""Runs a replay against an endpoint: a guarded worker opens the dump and plans, this process talks to the server.

What opens a dump has no network, and what has the network opens no dump: the plan between them is all they share.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

from replay.errors import BudgetSpent, ReplayError
from replay.isolate.limits import DEFAULT_LIMITS, Limits
from replay.isolate.result import Result, from_exception, state_isolation
from replay.isolate.supervisor import OnEvent, blocking, supervise
from replay.report import finding
from replay.targets.endpoint.judge import Try, judge
from replay.targets.endpoint.options import API_KEY_ENV, EndpointOptions, api_key, endpoint_options
from replay.targets.endpoint.plan import Plan
from replay.targets.endpoint.play import Emit, Player
from replay.targets.endpoint.report import endpoint_report
from replay.verdict import Reason

PLAN_JOB = "replay.targets.endpoint.job:make_plan"


async def supervise_endpoint(
    job: Mapping[str, Any], *, on_event: OnEvent | None = None, limits: Limits = DEFAULT_LIMITS
) -> Result:
    """Play the requests of a dump against the endpoint of ``job`` and return how that ended. As `supervise`; all tries
    together have the job's own ``timeout_s``, or else that of ``limits``, from the first request on. Cancelling closes
    every connection.

    Raises `UsageError` for options that cannot be used.
    """
    options = endpoint_options(job)
    key, findings = api_key(options, os.environ)
    began = time.perf_counter()
    planned = await supervise(job, on_event=on_event, limits=limits, job_function=PLAN_JOB)
    if planned.report is None:
        return planned
    try:
        plan = Plan.from_json(planned.report)
        report = await _play(
            plan,
            options,
            key,
            findings,
            timeout_s=options.timeout_s or limits.timeout_s,
            emit=on_event or (lambda event: None),
            began=began,
        )
    except ReplayError as error:
        return Result(error=from_exception(error), guard=planned.guard, progress=planned.progress, step_started=True)
    state_isolation(report, planned.guard)
    report["environment"]["network"] = f"nothing but {options.url}" if plan.calls else "nothing"
    return Result(report=report, guard=planned.guard, progress=planned.progress, step_started=bool(plan.calls))


run_endpoint = blocking(supervise_endpoint)


async def _play(
    plan: Plan,
    options: EndpointOptions,
    key: str,
    findings: list[dict[str, Any]],
    *,
    timeout_s: float | None,
    emit: Emit,
    began: float,
) -> dict[str, Any]:
    """Raises `BudgetSpent` when the time was over before the first try was."""
    loaded = time.perf_counter()
    tries: list[Try] = []
    models: list[str] = []
    found = list(findings)
    async with Player(plan, options.url, key=key, proxy=options.proxy) as player:
        try:
            async with asyncio.timeout(timeout_s) as clock:
                for number in range(options.repeat if plan.kind is not None else 0):
                    heard = await player.once(emit, f"try {number + 1} of {options.repeat} (requests)")
                    tries.append(judge(plan, heard))
                    if tries[-1].hopeless:
                        break
        except TimeoutError:
            if not clock.expired():
                raise
            if not tries:
                raise BudgetSpent(
                    f"the endpoint took longer than {timeout_s:g} s for {len(plan.calls)} requests",
                    remedy="raise --timeout, or leave it out",
                ) from None
            found.append(
                finding(Reason.BUDGET.value, f"--timeout was over after {len(tries)} of {options.repeat} tries")
            )
        if tries and tries[-1].decision.reason is Reason.ENDPOINT_NO_MODEL:
            models = await player.models()
        ended = time.perf_counter()
        return endpoint_report(
            plan,
            options,
            tries,
            key_from=(options.api_key_env or API_KEY_ENV) if key and tries else None,
            dropped=player.dropped,
            as_text=player.as_text,
            models=models,
            findings=found,
            timings={"load_s": loaded - began, "step_s": ended - loaded, "total_s": ended - began},
        )
