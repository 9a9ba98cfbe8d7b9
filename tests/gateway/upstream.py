"""The gateway's side of the model server: chats as prompts, and what the model answers, token by token."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

TOOL_CALL = "<tool_call>\n"
END_OF_CALL = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event of the server adds. ``finish_reason`` comes with the last one."""

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None


def prompt_of(chat: Mapping[str, Any]) -> str:
    """The chat as one text. With tools, the beginning of a call is put into the model's mouth."""
    turns = [_turn(message["role"], _content(message)) for message in chat["messages"]]
    if tools := chat.get("tools"):
        shown = ", ".join(_signature(tool["function"]) for tool in tools)
        call = '<tool_call>\n{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>'
        turns.insert(0, _turn("system", f"You call tools. To call one, write\n{call}\nTools: {shown}"))
    return "".join(turns) + "<|im_start|>assistant\n" + (TOOL_CALL if tools else "")


async def ask(client: aiohttp.ClientSession, chat: Mapping[str, Any]) -> AsyncGenerator[Delta, None]:
    """The model's answer."""
    body = {
        "model": chat["model"],
        "prompt": prompt_of(chat),
        "max_tokens": chat["max_tokens"],
        "stream": True,
        "return_token_ids": True,
    }
    body |= {"stop": [END_OF_CALL]} if chat.get("tools") else {}
    body |= {name: chat[name] for name in ("temperature", "seed", "logit_bias") if name in chat}
    async with client.post("v1/completions", json=body) as answer:
        answer.raise_for_status()
        try:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    yield Delta(choice["text"], choice["token_ids"], choice["finish_reason"])
        finally:  # what nobody wants any more is read to its end, so that the connection can be used again
            await answer.read()


def _turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _content(message: Mapping[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    texts = [f'{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}' for call in calls]
    written = [f"{TOOL_CALL}{text}\n{END_OF_CALL}" for text in texts]
    return "".join([message.get("content") or "", *written])


def _signature(function: Mapping[str, Any]) -> str:
    return f"{function['name']}({', '.join(function['parameters']['properties'])})"
