"""What happens to each text of a dump: one rule for every field of the schema that can hold one.

A field that has no rule here, such as one of a later release, is emptied. So a new field can leak nothing before
somebody has said what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from dumps.schema import state_pb2 as pb
from dumps.schema.layout import CONTAINER


class Sort(StrEnum):
    """What a text is, and so what happens to it. "Prompt" is the stricter redaction, ``redact --prompt``."""

    TERM = "term"
    """A word of the format or a name in code. One that does not look so is removed."""
    LABEL = "label"
    """A name that people may have chosen. Kept where it looks like a name; for prompt, and else, a made-up one."""
    FACT = "fact"
    """About the machine or how the server was started. Kept without secrets, removed for prompt."""
    TEXT = "text"
    """Of people or about them, and no replay needs it. Removed."""
    WORLD = "world"
    """What a replay works with: a program's world, a request's stop strings. Kept without secrets, removed for
    prompt."""
    MESSAGE = "message"
    """What a verdict compares. Kept without secrets; for prompt only where it is made of our own words."""
    NOTE = "note"
    """A sentence of our own. Removed where it is not made of our own words."""
    DIGEST = "digest"
    """A hash of something of people's. Made anew with a key that is thrown away: equal ones stay equal."""
    NUMBERS = "numbers"
    """Block ids or reference counts. Removed where they are none."""
    RESULT = "result"
    """What a system call gave: a word, or numbers by name as of stat (not for prompt). Anything else
    is removed."""
    OWN = "own"
    """Has a rule of its own: token ids, hashes of blocks, digests of logits, headers, exchanges."""


_FRAME = {"function": Sort.TERM, "filename": Sort.TERM, "module": Sort.TERM}
_HASHES = {"hash": Sort.OWN, "parent": Sort.OWN}
_FINISHED = {"reason": Sort.TERM, "cause": Sort.TERM}
_HEADERS = {"key": Sort.TERM, "value": Sort.OWN}


def _below(path: str, rules: dict[str, Sort]) -> dict[str, Sort]:
    return {f"{path}.{name}": sort for name, sort in rules.items()}


def _terms(path: str, names: str) -> dict[str, Sort]:
    return {f"{path}.{name}": Sort.TERM for name in names.split()}


RULES: dict[str, Sort] = {
    **_terms("manifest", "reason tool_version record_level platform_fingerprint"),
    **_terms("manifest.versions[]", "key value"),
    **_terms("manifest.platform[]", "key"),
    "manifest.platform[].value": Sort.FACT,
    "manifest.launch_arguments[]": Sort.FACT,
    "manifest.hostname_hash": Sort.FACT,
    "manifest.id": Sort.OWN,
    "manifest.tenant": Sort.TEXT,
    "manifest.session": Sort.TEXT,
    "active_model": Sort.TERM,
    **_terms("model", "name architecture weights_fingerprint tokenizer_fingerprint dtype quantisation"),
    **_terms("model", "lora draft_model attention_backend"),
    **_terms("engine", "engine on_kv_exhausted kernels"),
    **_terms("failures[]", "kind invariant exception_type frame"),
    "failures[].message": Sort.MESSAGE,
    "failures[].exchange": Sort.LABEL,
    **_terms("failures[].non_finite", "where tensor"),
    "failures[].read.writer": Sort.LABEL,
    "requests[].id": Sort.LABEL,
    **_terms("requests[]", "endpoint status finish_reason finish_cause"),
    "requests[].prompt_token_ids": Sort.OWN,
    "requests[].output_token_ids": Sort.OWN,
    "requests[].output_digests": Sort.OWN,
    "requests[].sampling.stop[]": Sort.WORLD,
    "requests[].prompt_text": Sort.TEXT,
    "requests[].output_text": Sort.TEXT,
    "requests[].multimodal_hashes[]": Sort.DIGEST,
    "requests[].grammar_state": Sort.TEXT,
    "scheduler.start.free_blocks": Sort.NUMBERS,
    "scheduler.start.running[].block_table": Sort.NUMBERS,
    **_below("scheduler.start.prefix_hashes[]", _HASHES),
    "steps[].scheduled[].new_blocks": Sort.NUMBERS,
    "steps[].exhausted[].outcome": Sort.TERM,
    **_below("steps[].finished[]", _FINISHED),
    **_below("steps[].aborted[]", _FINISHED),
    "steps[].prefix_hits[].blocks": Sort.NUMBERS,
    **_terms("kv", "dtype contents_selection"),
    "kv.free_blocks": Sort.NUMBERS,
    "kv.tables[].blocks": Sort.NUMBERS,
    "kv.ref_counts": Sort.NUMBERS,
    "kv.contents_blocks": Sort.NUMBERS,
    **_below("kv.prefix_hashes[]", _HASHES),
    "kv.block_history[].event": Sort.TERM,
    "threads[].name": Sort.LABEL,
    "threads[].kind": Sort.TERM,
    **_below("threads[].frames[]", _FRAME),
    **_terms("exceptions[]", "type link"),
    "exceptions[].message": Sort.MESSAGE,
    **_below("exceptions[].frames[]", _FRAME),
    "ledger[].path": Sort.TERM,
    "ledger[].note": Sort.NOTE,
    "context_stack[].last_message_id": Sort.WORLD,
    "context_stack[].kind": Sort.WORLD,
    "context_stack[].payload_json": Sort.WORLD,
    "tool_calls[].id": Sort.LABEL,
    "tool_calls[].name": Sort.LABEL,
    "tool_calls[].arguments_json": Sort.WORLD,
    "tool_calls[].result_json": Sort.WORLD,
    **_terms("tool_calls[]", "status error_type"),
    "tool_calls[].error_message": Sort.WORLD,
    "tool_calls[].task": Sort.LABEL,
    "tool_calls[].within": Sort.LABEL,
    **_terms("syscalls[]", "name errno_name"),
    "syscalls[].ret": Sort.RESULT,
    "syscalls[].args[]": Sort.WORLD,
    "syscalls[].data": Sort.WORLD,
    "syscalls[].task": Sort.LABEL,
    "exchanges[].id": Sort.LABEL,
    **_terms("exchanges[]", "method error direction framing client"),
    "exchanges[].url": Sort.OWN,
    **_below("exchanges[].request_headers[]", _HEADERS),
    **_below("exchanges[].response_headers[]", _HEADERS),
    "exchanges[].request_body": Sort.OWN,
    "exchanges[].chunks[].data": Sort.OWN,
    "exchanges[].request_chunks[].data": Sort.OWN,
    "exchanges[].error_message": Sort.WORLD,
    "exchanges[].task": Sort.LABEL,
    "exchanges[].within": Sort.LABEL,
    **_below("exchanges[].call_site[]", _FRAME),
    "descriptors[].kind": Sort.TERM,
    "descriptors[].target": Sort.WORLD,
    "metrics[].name": Sort.TERM,
    **_terms("trace_events[]", "name phase"),
    **_below("trace_events[].args[]", {"key": Sort.TERM, "value": Sort.OWN}),
    **_terms("logs[]", "level logger"),
    "logs[].message": Sort.TEXT,
    **_terms("quirks[]", "name detail"),
    **_terms("redactions[]", "path what"),
    "redactions[].reason": Sort.NOTE,
    **_terms("program", "entry kind hash_seed python_version"),
    "program.arguments_json": Sort.WORLD,
    "program.argv[]": Sort.WORLD,
    "program.temporary_folder": Sort.WORLD,
    "program.environment[].key": Sort.TERM,
    "program.environment[].value": Sort.OWN,
    "entropy[].source": Sort.TERM,
    "entropy[].data": Sort.WORLD,
    "entropy[].task": Sort.LABEL,
}

NAMESPACES: dict[str, str] = {
    "requests[].id": "request",
    "failures[].read.writer": "request",
    "exchanges[].id": "exchange",
    "failures[].exchange": "exchange",
    "tool_calls[].within": "exchange",
    "exchanges[].within": "exchange",
    "tool_calls[].id": "tool",
    "tool_calls[].name": "function",
    "tool_calls[].task": "task",
    "exchanges[].task": "task",
    "syscalls[].task": "task",
    "entropy[].task": "task",
    "threads[].name": "task",
}
"""Labels of one space name the same things: equal ones stay equal, and different ones different."""


@dataclass(frozen=True, slots=True)
class TextField:
    """A field that holds text or bytes, by its path with ``[]`` for every element."""

    path: str
    field: FieldDescriptor


def text_fields() -> Iterator[TextField]:
    """Every field of the schema's content that holds text or bytes."""
    yield from _text_fields(cast(Descriptor, pb.RuntimeState.DESCRIPTOR), "")


def _text_fields(descriptor: Descriptor, prefix: str) -> Iterator[TextField]:
    fields: list[Any] = list(descriptor.fields)
    for field in fields:
        if not prefix and field.number in CONTAINER:
            continue
        path = prefix + field.name + ("[]" if field.is_repeated else "")
        if field.type == field.TYPE_MESSAGE:
            yield from _text_fields(field.message_type, f"{path}.")
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            yield TextField(path, field)
