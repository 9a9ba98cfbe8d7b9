"""Captures the golden incidents: runs the reference server into each failure and keeps the dump it wrote.

    python -m tests.capture kv-overflow nan-block

Nothing in a fixture is typed in: the signature is the dump's, and what its replays show is read from their reports.
A capture whose replays do not reach the verdicts below is not kept.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from dumps.schema.reader import open_dump
from replay.cli.demo import QUESTIONS
from replay.isolate.supervisor import run as run_isolated
from replay.models.locate import locate
from replay.report import tool_version
from replay.targets.expected import own_signature
from tests.fixture_folders import FIXTURES, shown
from tests.servers import running_server
from tests.tiny import make_tiny_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """How to make a server fail, and what a replay of its dump must say.

    ``replays`` are (options, verdict) pairs; the first one has no options, the neighbours change one thing each.
    ``shows`` are report paths whose values are kept with the fixture.
    """

    note: str
    server: tuple[str, ...]
    prompts: tuple[str, ...]
    body: Mapping[str, Any]
    replays: tuple[tuple[Mapping[str, Any], str], ...]
    shows: tuple[str, ...]
    model: str = ""
    tiny: Mapping[str, Any] = field(default_factory=dict)


INCIDENTS: dict[str, Incident] = {
    "kv-overflow": Incident(
        note="Six chats share a pool of 36 blocks. Decoding fills it, and the request that then asks for a block is "
        "ended with finish_reason 'length', far below the 120 tokens it was allowed. The client saw HTTP 200.",
        model="smollm2-135m",
        server=("--kv-blocks", "36", "--on-kv-exhausted", "truncate", "--record", "tokens"),
        prompts=QUESTIONS,
        body={"max_tokens": 120, "temperature": 0},
        replays=(
            ({}, "reproduced"),
            ({"target": "schedule"}, "reproduced"),
            ({"set": {"kv.num_blocks": 160}}, "not-reproduced"),
            ({"target": "schedule", "set": {"kv.num_blocks": 160}}, "not-reproduced"),
        ),
        shows=("kv.kv_cache_used_bytes", "kv.max_kv_cache_bytes", "kv.seq_len_exceeded_at", "failure.step"),
    ),
    "nan-block": Incident(
        note="Three chats on a tiny random model (weights in this folder). After a step one exponent bit of one cached "
        "key flips (quirk kv-bit-flip): the key becomes NaN, and the next step of that request gives no finite logits. "
        "The dump holds the damaged block's bytes, the only way in which the NaN can enter a replay.",
        tiny={"num_hidden_layers": 3},
        server=(
            *("--kv-blocks", "64", "--block-size", "4", "--record", "tokens", "--record-kv", "faulty"),
            *("--quirk", "kv-bit-flip:request=1,layer=1,position=6,after_step=20"),
        ),
        prompts=("Hello there, who are you?", "Count to ten, please.", "What is a block table?"),
        body={"max_tokens": 60, "temperature": 0, "ignore_eos": True},
        replays=(
            ({}, "reproduced"),
            ({"kv": "recompute"}, "not-reproduced"),
            ({"target": "schedule"}, "inconclusive"),
        ),
        shows=(
            "failure.non_finite.layer",
            "failure.non_finite.tensor",
            "failure.non_finite.block",
            "failure.non_finite.slot",
            "failure.non_finite.position",
            "failure.non_finite.written_by_step",
            "failure.step",
        ),
    ),
}


def capture(name: str) -> Path:
    """Make the fixture folder of one incident anew.

    Raises AssertionError and leaves the old one when it is not right.
    """
    incident = INCIDENTS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        model = locate(incident.model) if incident.model else make_tiny_model(folder / "model", **incident.tiny)
        with running_server(
            model, Path(scratch) / "dumps", "--served-model-name", incident.model or "tiny", *incident.server
        ) as server:
            asyncio.run(_ask(server.url, incident))
            dumps = server.dump_files()
        assert dumps, f"{name}: the server wrote no dump"
        shutil.copy(dumps[0], folder / "dump.pplx")
        replays = [_replayed(folder / "dump.pplx", options, verdict, incident) for options, verdict in incident.replays]
        with open_dump(folder / "dump.pplx") as dump:
            signature = own_signature(dump.state)
            assert signature is not None
            document = {
                "name": name,
                "state": "open",
                "note": incident.note,
                "captured": {"date": time.strftime("%Y-%m-%d"), "tool_version": tool_version()},
                "signature": signature.to_json(),
                "replays": replays,
            }
        (folder / "fixture.json").write_text(json.dumps(document, indent=2) + "\n")
        target = FIXTURES / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)
    return target


async def _ask(url: str, incident: Incident) -> None:
    """All chats at once. One of them fails, which is the point; a connection that breaks is not."""

    async def one(session: aiohttp.ClientSession, prompt: str) -> None:
        body = {"messages": [{"role": "user", "content": prompt}], "model": incident.model or "tiny", **incident.body}
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            await response.read()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(one(session, prompt) for prompt in incident.prompts))


def _replayed(dump: Path, options: Mapping[str, Any], verdict: str, incident: Incident) -> dict[str, Any]:
    result = run_isolated({"dump": str(dump), **options})
    assert result.report is not None, result.error
    assert result.report["verdict"] == verdict, (options, result.report)
    entry: dict[str, Any] = {"options": dict(options), "verdict": verdict}
    if verdict == "reproduced":
        entry["shows"] = {path: shown(result.report, path) for path in incident.shows}
    return entry


def main(names: Sequence[str]) -> None:
    for name in names or list(INCIDENTS):
        target = capture(name)
        size = (target / "dump.pplx").stat().st_size
        sys.stdout.write(f"{target.relative_to(FIXTURES.parent)}: dump of {size:,} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
