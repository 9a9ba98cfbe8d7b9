from __future__ import annotations

import pytest

from dumps.redact import redact
from dumps.redact.policy import NAMESPACES, RULES, Sort, text_fields
from tests.planted import full_state

SECRET = "sk-aaaaBBBBccccDDDDeeee1111"
PATHS = [one.path for one in text_fields()]
NOT_TEXT = frozenset(
    {
        "requests[].prompt_token_ids",
        "requests[].output_token_ids",
        "requests[].output_digests",
        "scheduler.start.prefix_hashes[].hash",
        "scheduler.start.prefix_hashes[].parent",
        "kv.prefix_hashes[].hash",
        "kv.prefix_hashes[].parent",
    }
)
"""Stay as they are without --prompt: ids and hashes of them."""


def sentence(path: str) -> str:
    return f"Grace Hopper has the flu {PATHS.index(path) if path in PATHS else 'no'} and went home."


def test_every_text_field_of_the_schema_has_a_rule_and_every_rule_a_field():
    assert set(PATHS) == set(RULES)
    assert set(NAMESPACES) == {path for path, sort in RULES.items() if sort is Sort.LABEL}


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("program", [False, True])
def test_a_secret_in_any_text_field_is_gone(prompt: bool, program: bool):
    without = (frozenset[str]() if prompt else NOT_TEXT) | (frozenset() if program else {"program"})
    state = full_state(lambda path: SECRET, without=without)
    data = redact(state, prompt=prompt).state.SerializeToString()
    assert SECRET.encode() not in data
    assert SECRET[6:].encode() not in data


@pytest.mark.parametrize("program", [False, True])
def test_with_prompt_a_sentence_in_any_text_field_is_gone(program: bool):
    state = full_state(sentence, without=frozenset() if program else frozenset({"program"}))
    data = redact(state, prompt=True).state.SerializeToString()
    assert b"Hopper" not in data
    assert b"flu" not in data


@pytest.mark.parametrize("program", [False, True])
def test_without_prompt_a_sentence_stays_only_where_the_list_of_what_stays_says_so(program: bool):
    without = NOT_TEXT if program else NOT_TEXT | {"program"}
    redacted = redact(full_state(sentence, without=without))
    data = redacted.state.SerializeToString()
    stay = {path for path in PATHS if path not in without and sentence(path).encode() in data}
    told = {one.path for one in redacted.kept}
    silent = {path for path, sort in RULES.items() if sort in (Sort.FACT, Sort.NOTE)}
    assert stay <= told | silent
    assert "requests[].prompt_text" not in stay
    assert "logs[].message" not in stay


def test_a_field_without_a_rule_is_emptied(monkeypatch):
    monkeypatch.delitem(RULES, "model.architecture")
    state = full_state(lambda path: "LlamaForCausalLM")
    assert redact(state).state.model.architecture == ""


def test_unknown_fields_go():
    state = full_state(lambda path: "x")
    state.MergeFromString(b"\xfa\x3e\x05later")  # field 1007
    redacted = redact(state)
    assert b"later" not in redacted.state.SerializeToString()
    assert ("manifest", "removed") in {(one.path, one.what) for one in redacted.changes}
