"""A replay against an endpoint as a whole: who opens the dump, and what ends it early."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import time

from aiohttp import web

from replay.isolate.endpoint import run_endpoint
from tests.replay.targets.endpoint.endpoints import FULL, PATH, serving
from tests.reports import findings
from tests.scripted_server import scripted_server
from tests.small_dump import small_state


def test_a_dump_opens_in_a_process_without_network(replay):
    with scripted_server({PATH: FULL}) as server:
        report = replay(server.url(""))
    assert report["environment"]["isolation"]["grade"].startswith("audit-hook")
    assert report["environment"]["isolation"]["refused"] == []
    assert server.url("") in report["environment"]["network"]


def test_a_damaged_dump_is_a_damaged_dump(tmp_path):
    path = tmp_path / "bad.pplx"
    path.write_bytes(b"PPLX nonsense")
    result = run_endpoint({"dump": str(path), "target": "endpoint=http://127.0.0.1:9"})
    assert result.error is not None
    assert result.error.exit_code == 4


def test_the_budget_ends_a_server_that_never_answers(write):
    with scripted_server({PATH: ["hang"]}) as server:
        job = {"dump": str(write(small_state())), "target": f"endpoint={server.url('')}", "timeout_s": 0.3}
        result = run_endpoint(job)
    assert result.report is None
    assert result.error is not None
    assert (result.error.kind, result.error.exit_code) == ("BudgetSpent", 21)
    assert "2 requests" in result.error.message


def test_tries_that_were_made_count_when_the_budget_is_spent(replay):
    first = itertools.count()

    async def answer(request: web.Request) -> web.StreamResponse:
        if next(first) >= 2:
            await asyncio.sleep(30)
        return web.json_response(
            {"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}
        )

    with serving(answer) as url:
        report = replay(url, repeat=3, timeout_s=1.5)
    assert report["verdict"] == "reproduced"
    assert report["repeat"] == {"n": 1, "reproduced": 1}
    assert "1 of 3" in findings(report, "budget-spent")[0]["message"]


def test_ctrl_c_closes_the_connections(write):
    """A replay that waits for an endpoint which never answers, interrupted as from a terminal."""
    code = "import sys; from replay.isolate.endpoint import run_endpoint; run_endpoint(eval(sys.argv[1]))"
    with scripted_server({PATH: ["hang"]}) as server:
        job = {"dump": str(write(small_state())), "target": f"endpoint={server.url('')}"}
        process = subprocess.Popen([sys.executable, "-c", code, repr(job)], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while len(server.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert len(server.requests) == 2
    assert process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
