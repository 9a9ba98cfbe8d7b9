"""What the gateway checks of an answer once its client has it. Nobody would notice otherwise: each was a 200."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dumps.record.seams import context
from tests.gateway.tool_parser import cut_argument


class ToolCallTruncated(Exception):
    """A tool call was handed on as whole, and its arguments are cut."""


class InvalidUtf8InDelta(Exception):
    """A delta was sent that is no UTF-8."""


@dataclass(frozen=True, slots=True)
class Token:
    """The last token of an answer: its place in the output from 0, its id, and its text."""

    index: int
    id: int
    text: str


def check_tool_call(name: str, arguments: str, finish_reason: str, last: Token) -> None:
    """Raises `ToolCallTruncated` that names the argument and the token."""
    if finish_reason != "tool_calls":
        return
    try:
        json.loads(arguments)
    except ValueError:
        argument = cut_argument(arguments)
        facts = {"tool": name, "argument": argument, "arguments": arguments, "token": last.index, "token_id": last.id}
        with context.frame("tool-call", facts | {"token_text": last.text}):
            raise ToolCallTruncated(
                f"argument {argument!r} of {name!r} is cut at output token {last.index}, and the client was told "
                f"finish_reason {finish_reason!r}"
            ) from None


def check_delta(number: int, delta: bytes, last: Token, pending: bytes) -> None:
    """Raises `InvalidUtf8InDelta` that names the token and the bytes that were pending."""
    try:
        delta.decode()
    except UnicodeDecodeError:
        facts = {"delta": number, "token": last.index, "token_id": last.id, "bytes_pending": pending.hex(" ")}
        with context.frame("delta", facts):
            raise InvalidUtf8InDelta(
                f"delta {number} is no UTF-8: output token {last.index} ends inside a character, "
                f"bytes pending: {pending.hex(' ')}"
            ) from None
