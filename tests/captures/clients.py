"""Incidents of clients that leave at a bad moment. Whether one does is decided by the clock, so a load tries again
until the server has written a dump."""

from __future__ import annotations

import asyncio

from tests.captures.incident import NOT_REPRODUCED, REPRODUCED, Client, ServerIncident

TRIES = 50
TH = 260  # the token of tests.tiny that says "th"
SECRET = "My card number is 4929 1234 5678 9012, and the code on its back is 737. Keep it to yourself. " * 2
QUESTION = "Summarise the following in one sentence. " + "The quick brown fox jumps over the lazy dog. " * 3


async def _cancelled_during_prefill_and_asked_again(client: Client) -> None:
    for attempt in range(TRIES):
        await client.chat(SECRET, max_tokens=2, ignore_eos=True)
        question, before = f"{attempt}. {QUESTION}", await client.steps()
        leaving = asyncio.create_task(client.chat(question, max_tokens=4))
        while await client.steps() < before + 3:
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await client.chat(question, max_tokens=4)
        if client.dumps():
            return


async def _gone_while_the_last_token_is_computed(client: Client) -> None:
    for _ in range(TRIES):
        beside = asyncio.create_task(client.chat("Count to ten, please.", max_tokens=30, ignore_eos=True))
        # Each token is the same piece of text, so that there is a chunk for each.
        always = {"max_tokens": 6, "ignore_eos": True, "logit_bias": {str(TH): 100}}
        async with client.post("Hello.", stream=True, **always) as response:
            seen = 0
            async for line in response.content:
                seen += line.startswith(b"data: ")
                if seen == 6:  # the role and five tokens: the sixth, which ends the answer, is on its way
                    response.close()
                    break
        await beside
        if client.dumps():
            return


INCIDENTS = {
    "prefix-leak": ServerIncident(
        note="Somebody's chat ends, and its blocks are free. A long prompt is given most of them, and its client "
        "leaves during the prefill. The prefix cache knows blocks from their allocation on (quirk prefix-leak), so it "
        "keeps some that this prompt never wrote, and the same prompt, asked again, reads the first chat's keys and "
        "values. The server runs with --checks. The weights are not here: whose blocks are read shows without them.",
        server=(
            *("--kv-blocks", "46", "--block-size", "4", "--record", "tokens", "--prefix-cache", "--checks"),
            *("--max-num-batched-tokens", "8", "--quirk", "prefix-leak"),
        ),
        load=_cancelled_during_prefill_and_asked_again,
        replays=(
            ({"target": "schedule"}, REPRODUCED),
            ({"target": "schedule", "set": {"quirk.prefix-leak": "off"}}, NOT_REPRODUCED),
            ({"target": "schedule", "set": {"scheduler.prefix_cache": "false"}}, NOT_REPRODUCED),
        ),
        shows=(
            "failure.request_id",
            "failure.step",
            "failure.read.block",
            "failure.read.writer",
            "findings.contamination.owners",
        ),
    ),
    "abort-race": ServerIncident(
        note="A client leaves while the last token of its answer is computed: the request finishes, and the abort that "
        "its going caused comes after that, before the request is forgotten. The handler of aborts does not find it "
        "and raises KeyError (quirk abort-after-finish), and the chat beside it dies, too. The weights are not here: "
        "the scheduler shows it.",
        server=(
            *("--kv-blocks", "64", "--block-size", "4", "--record", "tokens"),
            *("--quirk", "abort-after-finish"),
        ),
        load=_gone_while_the_last_token_is_computed,
        replays=(
            ({"target": "schedule"}, REPRODUCED),
            ({"target": "schedule", "set": {"quirk.abort-after-finish": "off"}}, NOT_REPRODUCED),
        ),
        shows=(
            "failure.request_id",
            "failure.exception_type",
            "failure.step",
            "findings.abort-after-finish.events",
        ),
    ),
}
