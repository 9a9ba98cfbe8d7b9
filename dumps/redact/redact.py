"""Takes secrets and people's text out of a dump's state, and with ``prompt`` the token ids too.

Without ``prompt`` everything stays that a replay uses: token ids, KV contents, the world of a recorded program. With it
what stays is the shape of the run: lengths, blocks, who shared a prefix with whom, who came, waited, ran and left when.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from google.protobuf.message import Message

from dumps import ledger
from dumps.kv_contents import CONTENTS, SCALES
from dumps.redact.changes import Change, Changes, Kept
from dumps.redact.claims import Claim, claims_of
from dumps.redact.labels import Labels, is_term, was_made_up
from dumps.redact.policy import NAMESPACES, RULES, Sort
from dumps.redact.texts import Texts
from dumps.redact.tokens import HashMap, TokenMap
from dumps.redact.world import NO_TEXT, SECRET, keep_requests, keep_shape, number_again
from dumps.schema import state_pb2 as pb
from dumps.trace import FALLBACK, read_fallback

MAPPED = "ids mapped by a secret permutation: equal ids stay equal, and no replay can compute with them"
GONE = "removed by pplx-state redact"
NUMBERS = "numbers of the model, which tell of the text"
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Redacted:
    """``state`` is new and valid where the original was. ``sections`` are the kinds that stay; ``changes`` and ``kept``
    say what went and which text stays, ``claims`` which kinds of verdict survive."""

    state: pb.RuntimeState
    sections: frozenset[str]
    changes: tuple[Change, ...]
    kept: tuple[Kept, ...]
    claims: tuple[Claim, ...]


def redact(
    state: pb.RuntimeState, *, prompt: bool = False, sections: Iterable[tuple[str, int]] = (), key: bytes | None = None
) -> Redacted:
    """A redacted copy of ``state``.

    ``sections`` are the dump's, each with its kind and size. ``key`` decides permutation and hashes, 1 to 64 bytes; by
    default a fresh random one, which nobody keeps. Raises `LimitExceeded` as `TokenMap`.
    """
    return _Redaction(state, prompt=prompt, key=key or secrets.token_bytes(KEY_BYTES)).run(sections)


class _Redaction:
    def __init__(self, original: pb.RuntimeState, *, prompt: bool, key: bytes) -> None:
        self._original, self._prompt = original, prompt
        self._state = pb.RuntimeState()
        self._state.CopyFrom(original)
        self._changes, self._labels = Changes(), Labels()
        # A key for each use, so that no two of them can be compared.
        uses = ("ids", "blocks", "world", "hashes", "id")
        self._keys = {use: blake2b(use.encode(), key=key).digest() for use in uses}
        has_program = original.HasField("program")
        self._texts = Texts(
            prompt=prompt,
            has_program=has_program,
            key=self._keys["hashes"],
            labels=self._labels,
            changes=self._changes,
        )

    def run(self, sections: Iterable[tuple[str, int]]) -> Redacted:
        state = self._state
        unknown = state.ByteSize()
        state.DiscardUnknownFields()
        self._changes.count(
            "manifest", "removed", "fields that this release does not know", count=int(state.ByteSize() < unknown),
            size=unknown - state.ByteSize(),
        )  # fmt: skip
        self._name()
        if self._prompt:
            self._map_tokens()
            self._drop_numbers()
        self._exchanges()
        self._trace()
        self._special()
        self._walk(state, "")
        number_again(state.exchanges)
        state.manifest.record_level = self._level()
        state.manifest.id = self._keys["id"].hex()[:16]
        kept_kinds = self._sections(sections)
        self._record()
        return Redacted(
            state,
            kept_kinds,
            self._changes.made,
            self._changes.kept,
            claims_of(self._original, state, prompt=self._prompt),
        )

    def _name(self) -> None:
        """Names that stay are nobody else's, and requests are numbered in their own order."""
        for path, value in _labels_of(self._original, ""):
            space = NAMESPACES.get(path, "label")
            if self._texts.keeps_label(value) or was_made_up(space, value):
                self._labels.reserve(space, value)
        for request in self._original.requests:
            keeps = not request.id or self._texts.keeps_label(request.id)
            self._texts.ids[request.id] = request.id if keeps else self._labels.made_up("request", request.id)
        self._texts.ids.pop("", None)

    def _map_tokens(self) -> None:
        state, changes = self._state, self._changes
        size = sum(len(one.prompt_token_ids) + len(one.output_token_ids) for one in state.requests)
        tokens = TokenMap(self._original, self._keys["ids"])
        changes.count("requests[]", "mapped", "token ids", count=tokens.apply(state), size=size)
        blocks = HashMap(self._original, tokens, self._keys["blocks"]).apply(state)
        changes.count("kv.prefix_hashes", "mapped", "hashes of blocks", count=blocks, size=32 * blocks)

    def _drop_numbers(self) -> None:
        changes, state = self._changes, self._state
        for request in state.requests:
            if request.HasField("output_digests"):
                changes.add("requests[].output_digests", "removed", NUMBERS, request.output_digests)
                request.ClearField("output_digests")
        count = 0
        for step in state.steps:
            for chunk in step.scheduled:
                count += chunk.HasField("logits_digest")
                chunk.ClearField("logits_digest")
        changes.count("steps[].scheduled[].logits_digest", "removed", NUMBERS, count=count, size=8 * count)
        if state.kv.contents_blocks:
            changes.add("kv.contents_blocks", "removed", "the contents are not kept", state.kv.contents_blocks)
            state.kv.ClearField("contents_blocks")
        if state.kv.contents_selection:
            state.kv.contents_selection = "none"

    def _exchanges(self) -> None:
        for exchange in self._state.exchanges:
            if self._prompt:
                keep_shape(exchange, self._keys["world"], self._changes)
            else:
                keep_requests(exchange, self._changes)

    def _trace(self) -> None:
        """Decisions of an early exit hold token ids and probabilities; arguments of other events can be anything."""
        events, changes = self._state.trace_events, self._changes
        for index in range(len(events) - 1, -1, -1):
            event = events[index]
            if event.name == FALLBACK and self._prompt:
                changes.count("trace_events[]", "removed", NUMBERS, count=1, size=event.ByteSize())
                del events[index]
            elif not _is_fallback(event):
                for pair in event.args:
                    if not is_term(pair.value) or self._prompt:
                        changes.add("trace_events[].args[].value", "removed", NO_TEXT, pair.value)
                        pair.value = ""

    def _special(self) -> None:
        """Fields whose rule looks at more than one value."""
        texts, state = self._texts, self._state
        arguments = state.manifest.launch_arguments
        arguments[:] = texts.arguments("manifest.launch_arguments[]", list(arguments))
        for variable in state.program.environment if state.HasField("program") else ():
            variable.value = texts.variable("program.environment[].value", variable.key, variable.value)
        for call in state.syscalls if self._prompt else ():
            call.data_partial |= bool(call.data)
        if self._prompt:
            for request in state.requests:
                for value in request.sampling.stop:
                    self._changes.add("requests[].sampling.stop[]", "removed", NO_TEXT, value)
                request.sampling.ClearField("stop")

    def _walk(self, message: Message, prefix: str) -> None:
        for field, value in message.ListFields():
            path = prefix + field.name + ("[]" if field.is_repeated else "")
            if field.type == field.TYPE_MESSAGE:
                for one in value if field.is_repeated else (value,):
                    self._walk(one, f"{path}.")
            elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
                sort = RULES.get(path, Sort.TEXT)
                if sort is not Sort.OWN and path != "manifest.launch_arguments[]":
                    self._apply(message, field, path, sort, value)

    def _apply(self, message: Message, field: Any, path: str, sort: Sort, value: Any) -> None:
        rule: Any = self._texts.text if field.type == field.TYPE_STRING else self._texts.data
        if field.is_repeated:
            new = [rule(path, sort, one) for one in value]
            if new != list(value):
                value[:] = new if any(new) else []
            return
        new = rule(path, sort, value)
        if new == value and (new or sort is not Sort.TEXT):
            return
        if new:  # an empty text is none, and yet it says that one was recorded
            setattr(message, field.name, new)
        else:
            message.ClearField(field.name)

    def _level(self) -> str:
        """The level that what is left could have been recorded at."""
        state = self._state
        level = state.manifest.record_level
        world = state.HasField("program") or state.exchanges or state.tool_calls or state.syscalls or state.entropy
        if level != "full" or (world and not self._prompt):
            return level
        has_ids = any(one.HasField("prompt_token_ids") or one.HasField("output_token_ids") for one in state.requests)
        return "tokens" if has_ids or not world else "shape"

    def _sections(self, sections: Iterable[tuple[str, int]]) -> frozenset[str]:
        """KV contents can be needed by a replay; what else a dump carries is logs."""
        kept = set()
        for kind, size in sections:
            if kind in (CONTENTS, SCALES) and not self._prompt:
                kept.add(kind)
            else:
                named = kind if kind in (CONTENTS, SCALES, "log") else "other"
                self._changes.count("sections", "removed", f"section {named}", count=1, size=size)
        return frozenset(kept)

    def _record(self) -> None:
        state, changes = self._state, self._changes.made
        for change in changes:
            if change.path == "requests[]":
                for path in ("requests[].prompt_token_ids", "requests[].output_token_ids"):
                    ledger.record(state, path, pb.SYNTHESISED, MAPPED)
                ledger.record(state, "steps[].scheduled[].sampled_token", pb.SYNTHESISED, MAPPED)
            elif change.path == "kv.prefix_hashes":
                for path in ("kv.prefix_hashes", "scheduler.start.prefix_hashes"):
                    ledger.record(state, path, pb.SYNTHESISED, MAPPED)
            elif change.what == "removed" and _is_missed(change):
                ledger.record(state, change.path, pb.ABSENT, GONE)
        self._changes.record(state)


def _is_missed(change: Change) -> bool:
    """Whether some replay could have used what is gone."""
    sort = RULES.get(change.path, Sort.OWN)
    return sort not in (Sort.TERM, Sort.NOTE, Sort.FACT) and change.reason != SECRET and change.path[:8] != "manifest"


def _is_fallback(event: pb.TraceEvent) -> bool:
    if event.name != FALLBACK:
        return False
    try:
        read_fallback(event)
    except ValueError:
        return False
    return all(is_term(pair.value) for pair in event.args if pair.key != "candidates")


def _labels_of(message: Message, prefix: str) -> Iterable[tuple[str, str]]:
    for field, value in message.ListFields():
        path = prefix + field.name + ("[]" if field.is_repeated else "")
        if field.type == field.TYPE_MESSAGE:
            for one in value if field.is_repeated else (value,):
                yield from _labels_of(one, f"{path}.")
        elif RULES.get(path) is Sort.LABEL:
            yield path, value
