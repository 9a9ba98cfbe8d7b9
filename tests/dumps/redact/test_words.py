from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dumps.redact.words import in_our_words

ROOT = Path(__file__).resolve().parents[3]
WRITERS = (
    "dumps/record/state.py",
    "dumps/record/requests.py",
    "dumps/record/events.py",
    "replay/engine/contamination.py",
    "replay/serving/contents.py",
    "replay/serving/failures.py",
    "replay/targets/drive.py",
)


def sentences(path: str) -> Iterator[str]:
    """Texts with a blank in them that the module's code holds, without its docstrings."""
    tree = ast.parse((ROOT / path).read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and id(node) not in docs
        ):
            yield node.value


@pytest.mark.parametrize("path", WRITERS)
def test_what_our_own_code_writes_into_messages_and_notes_is_known(path: str):
    strange = [text for text in sentences(path) if in_our_words(text, {}) is None]
    assert not strange


@pytest.mark.parametrize(
    "message",
    [
        "answer cut after 55 tokens: kv-pool-exhausted",
        "block 7 is released more often than it was taken",
        "request r needs 2 more KV block(s) for token 33, 1 of 4 are free",
        "logits of request r are not finite at position 49",
        "'r'",
    ],
)
def test_messages_of_the_engine_are_ours_and_their_ids_are_replaced(message: str):
    kept = in_our_words(message, {"r": "request-1"})
    assert kept == re.sub(r"\br\b", "request-1", message)


@pytest.mark.parametrize(
    "message",
    [
        "Expecting value: line 1",
        "request alice was not served",
        "call 01711234567 to the end",
        "the answer is ä",
        "token " * 400,
    ],
)
def test_anything_else_may_be_of_people(message: str):
    assert in_our_words(message, {"r": "request-1"}) is None
