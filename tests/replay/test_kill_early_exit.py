"""``kill -9`` of a server whose requests have internal flags: the flags, the early ends and the decisions survive."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from dumps.record.recover import recover
from dumps.schema.reader import open_dump
from dumps.trace import read_fallback
from dumps.validate import validate
from replay.targets.job import run_job
from tests.servers import ServerProcess, kill_under_load, running_server
from tests.tiny import make_tiny_model

FLAGS = ("early-exit=0.95,fallback-trace=on", "fallback-trace=on", "early-exit=0.5", "")


async def load_and_kill(server: ServerProcess, tokens: int) -> None:
    """Clients with all kinds of flags, until ``tokens`` are drawn; then SIGKILL in mid-flight."""

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        for turn in range(10_000):
            flags = FLAGS[(number + turn) % len(FLAGS)]
            body = {
                "model": "tiny",
                "prompt": f"client {number}, turn {turn} ",
                "max_tokens": 60,
                "temperature": number % 2,
                "ignore_eos": True,
            }
            headers = {"X-PPLX-Internal-Flags": flags} if flags else {}
            async with session.post(f"{server.url}/v1/completions", json=body, headers=headers) as response:
                assert response.status == 200
                await response.read()

    await kill_under_load(server, client, clients=4, metric="pplx_output_tokens_total", count=tokens)


def test_flags_and_decisions_of_a_killed_server_come_back_and_are_decided_again(tmp_path: Path):
    tiny = make_tiny_model(tmp_path / "tiny")
    with running_server(tiny, tmp_path / "dumps", "--record", "tokens", "--kv-blocks", "200") as server:
        asyncio.run(load_and_kill(server, tokens=400))
        ring = server.ring
    path = recover(ring, tmp_path / "recovered.pplx")
    with open_dump(path) as dump:
        dump.verify()
        state = dump.state
    assert validate(state) == []
    asked = {(r.flags.early_exit, r.flags.fallback_trace) for r in state.requests}
    assert asked == {(0.95, True), (0.0, True), (0.5, False), (0.0, False)}
    assert {r.finish_cause for r in state.requests if r.flags.early_exit == 0.5 and r.finish_cause} == {"early-exit"}

    decisions: dict[int, set[int]] = {}
    for event in map(read_fallback, state.trace_events):
        decisions.setdefault(event.request, set()).add(event.position)
    for index, request in enumerate(state.requests):
        start, count = request.num_prompt_tokens, request.num_output_tokens
        went_on = count - 1 if request.status == "finished" else count
        expected = set(range(start, start + went_on)) if request.flags.fallback_trace else set()
        assert decisions.get(index, set()) == expected, (index, request.finish_cause)
    assert any(r.status == "running" and r.flags.fallback_trace and r.num_output_tokens for r in state.requests)

    report = run_job({"dump": str(path), "model": str(tiny)}, lambda _: None)
    assert (report["mode"], report["divergence"]) == ("strict", None)
    assert [f["code"] for f in report["findings"]] == ["process-death"]
    count = len(state.trace_events)
    assert count > 100
    # The step in which the process died ends in the replay, with decisions that nobody lived to record.
    unrecorded = report["fallbacks"].pop("replayed") - count
    assert 0 <= unrecorded <= len(state.scheduler.running)
    assert report["fallbacks"] == {"recorded": count, "compared": count, "differ": 0}
