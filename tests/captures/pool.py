"""Incidents of the KV pool: a prompt that it can never hold, and a pool that runs empty."""

from __future__ import annotations

import asyncio

from replay.cli.demo import QUESTIONS
from tests.captures.incident import NOT_REPRODUCED, REPRODUCED, Client, ServerIncident, together

SCHEDULE = {"target": "schedule"}
LONG = "Read this list and say what is in it: " + ", ".join(str(number) for number in range(40)) + "."


async def _a_long_prompt_behind_two_short_ones(client: Client) -> None:
    async with asyncio.TaskGroup() as chats:
        for prompt in ("Hello.", "Count to ten."):
            chats.create_task(client.chat(prompt, max_tokens=30, ignore_eos=True))
        while not await client.steps():
            await asyncio.sleep(0)
        chats.create_task(client.chat(LONG, max_tokens=8))


INCIDENTS = {
    "kv-wait": ServerIncident(
        note="A prompt that needs more KV blocks than the whole pool has is taken in (quirk prompt-unchecked) while "
        "two short chats run. When they have ended, nothing runs, every block is free, and it still does not fit: it "
        "waits for ever, while the health check answers 200. The weights are not here: scheduler and pool show it.",
        server=(*("--kv-blocks", "24", "--block-size", "4", "--record", "tokens"), "--quirk", "prompt-unchecked"),
        load=_a_long_prompt_behind_two_short_ones,
        replays=(
            (SCHEDULE, REPRODUCED),
            ({"target": "schedule", "set": {"kv.num_blocks": 64}}, NOT_REPRODUCED),
            ({"target": "schedule", "set": {"quirk.prompt-unchecked": "off"}}, NOT_REPRODUCED),
        ),
        shows=(
            "failure.request_id",
            "failure.pool.blocks_needed",
            "failure.pool.num_blocks",
            "failure.pool.wait_reason",
            "failure.pool.holders",
        ),
    ),
    "kv-overflow": ServerIncident(
        note="Six chats share a pool of 36 blocks. Decoding fills it, and the request that then asks for a block is "
        "ended with finish_reason 'length', far below the 120 tokens it was allowed. The client saw HTTP 200.",
        model="smollm2-135m",
        server=("--kv-blocks", "36", "--on-kv-exhausted", "truncate", "--record", "tokens"),
        load=together(QUESTIONS, max_tokens=120),
        replays=(
            ({}, REPRODUCED),
            (SCHEDULE, REPRODUCED),
            ({"set": {"kv.num_blocks": 160}}, NOT_REPRODUCED),
            ({"target": "schedule", "set": {"kv.num_blocks": 160}}, NOT_REPRODUCED),
        ),
        shows=("kv.kv_cache_used_bytes", "kv.max_kv_cache_bytes", "kv.seq_len_exceeded_at", "failure.step"),
    ),
    "kv-exhaust": ServerIncident(
        note="Four chats grow in a pool of 48 blocks under the policy raise. One of them needs a block for its next "
        "token, none is free, and the exception out of block allocation ends all four. The weights are not here: "
        "scheduler and pool show it.",
        server=(
            *("--kv-blocks", "48", "--block-size", "4", "--record", "tokens"),
            *("--on-kv-exhausted", "raise"),
        ),
        load=together(
            ("Hello there, who are you?", "Count to ten, please.", "What is a block table?", "Why?"),
            max_tokens=40,
            ignore_eos=True,
        ),
        replays=(
            (SCHEDULE, REPRODUCED),
            ({"target": "schedule", "set": {"kv.num_blocks": 128}}, NOT_REPRODUCED),
            ({"target": "schedule", "set": {"scheduler.on_kv_exhausted": "preempt"}}, NOT_REPRODUCED),
        ),
        shows=(
            "failure.request_id",
            "failure.exception_type",
            "failure.pool.blocks_needed",
            "failure.pool.blocks_free",
            "failure.pool.num_blocks",
            "failure.pool.holders",
            "failure.step",
        ),
    ),
}
