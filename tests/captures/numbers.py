"""Incidents that show in the model's numbers, or in what its tables do not have: their fixtures bring the weights."""

from __future__ import annotations

import asyncio

from tests.captures.incident import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, SMALLEST, Client, ServerIncident, together

CHATS = ("Hello there, who are you?", "Count to ten, please.", "What is a block table?")
POOL = ("--kv-blocks", "64", "--block-size", "4", "--record", "tokens")


async def _one_with_a_tiny_temperature(client: Client) -> None:
    await asyncio.gather(
        client.chat(CHATS[0], max_tokens=30, temperature=0.7, seed=1, ignore_eos=True),
        client.chat(CHATS[1], max_tokens=30, temperature=1e-4, seed=2, ignore_eos=True),
    )


async def _one_with_a_bias_beyond_the_vocabulary(client: Client) -> None:
    async with asyncio.TaskGroup() as chats:
        chats.create_task(client.chat(CHATS[0], max_tokens=30, ignore_eos=True))
        while not await client.steps():
            await asyncio.sleep(0)
        chats.create_task(client.chat(CHATS[1], max_tokens=30, logit_bias={"7": -1.5, "50256": -100}))


INCIDENTS = {
    "nan-block": ServerIncident(
        note="Three chats on a tiny random model (weights in this folder). After a step one exponent bit of one cached "
        "key flips (quirk kv-bit-flip): the key becomes NaN, and the next step of that request gives no finite logits. "
        "The dump holds the damaged block's bytes, the only way in which the NaN can enter a replay.",
        tiny={"num_hidden_layers": 3},
        brings_model=True,
        server=(
            *(*POOL, "--record-kv", "faulty"),
            *("--quirk", "kv-bit-flip:request=1,layer=1,position=6,after_step=20"),
        ),
        load=together(CHATS, max_tokens=60, ignore_eos=True),
        replays=(
            ({}, REPRODUCED),
            ({"kv": "recompute"}, NOT_REPRODUCED),
            ({"target": "schedule"}, INCONCLUSIVE),
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
    "temp-tiny": ServerIncident(
        note="Two chats on a tiny random model (weights in this folder), one at temperature 1e-4. Tokens are drawn by "
        "torch.multinomial from float16 probabilities (quirk multinomial; our own sampler does not work so): scaled "
        "logits overflow to infinity, softmax gives NaN, and the draw raises RuntimeError.",
        tiny=SMALLEST,
        brings_model=True,
        server=(*POOL, "--quirk", "multinomial"),
        load=_one_with_a_tiny_temperature,
        replays=(
            ({}, REPRODUCED),
            ({"set": {"sampling.temperature": 0.7}}, NOT_REPRODUCED),
            ({"set": {"quirk.multinomial": "off"}}, NOT_REPRODUCED),
            ({"target": "schedule"}, INCONCLUSIVE),
        ),
        shows=("failure.step", "failure.request_id", "failure.position", "failure.non_finite.where", "failure.message"),
    ),
    "logit-bias-oov": ServerIncident(
        note="Two chats on a tiny random model of 320 tokens (weights in this folder), one with a logit_bias for token "
        "50256, as of another tokenizer, which the server takes (quirk token-ids-unchecked). Where the bias is added "
        "the index is out of range, and both chats die. On a GPU the same write may reach a neighbour's row.",
        tiny=SMALLEST,
        brings_model=True,
        server=(*POOL, "--quirk", "token-ids-unchecked"),
        load=_one_with_a_bias_beyond_the_vocabulary,
        replays=(
            ({}, REPRODUCED),
            ({"set": {"quirk.token-ids-unchecked": "off"}}, NOT_REPRODUCED),
            ({"target": "schedule"}, INCONCLUSIVE),
        ),
        shows=(
            "failure.request_id",
            "failure.exception_type",
            "failure.message",
            "failure.step",
            "findings.invalid-state.message",
        ),
    ),
    "position-overflow": ServerIncident(
        note="A tiny random GPT-2 of 64 learned positions (weights in this folder) is served with max_model_len 128 "
        "(quirk positions-unchecked). A chat that decodes past position 63 asks for a row that the table does not "
        "have, and the step dies. A model with rotary positions goes on, finite and wrong.",
        architecture="gpt2",
        tiny={"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 1, "n_inner": 32},
        brings_model=True,
        server=(*POOL, "--max-model-len", "128", "--quirk", "positions-unchecked"),
        load=together(("Hi.",), max_tokens=90, ignore_eos=True),
        replays=(
            ({}, REPRODUCED),
            ({"set": {"sampling.max_tokens": 12}}, NOT_REPRODUCED),
            ({"set": {"quirk.positions-unchecked": "off"}}, "different-failure"),
            ({"target": "schedule"}, INCONCLUSIVE),
        ),
        shows=(
            "failure.request_id",
            "failure.position",
            "failure.step",
            "findings.position-overflow.limit",
            "findings.position-overflow.max_model_len",
        ),
    ),
}
