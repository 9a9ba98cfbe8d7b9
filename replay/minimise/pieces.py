"""Takes out of a dump what its replay does not need, without another run: stacks, logs, exchanges, tool calls, KV
contents. For what is not part of a scenario, and for dumps of which no scenario can be made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dumps.ledger import record as grade
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.validate import validate
from replay.minimise.passes.requests import drop_runs

LISTS = {
    "threads": "stacks",
    "exceptions": "exceptions",
    "logs": "log records",
    "metrics": "metrics",
    "trace_events": "trace events",
    "descriptors": "descriptors",
    "context_stack": "context messages",
    "tool_calls": "tool calls",
    "exchanges": "exchanges",
    "syscalls": "file records",
    "entropy": "draws of entropy",
    "clock_changes": "clock changes",
}
"""Lists of a dump's state that can be shorter, in words, in the order in which they are tried."""

KV_SECTIONS = ("kv-contents", "kv-scales")
NOTE = "taken out by pplx-replay minimise: its replay does not need them"


@dataclass(frozen=True, slots=True)
class Content:
    """A dump in memory. Nobody changes it: what is taken out makes a new one."""

    state: pb.RuntimeState
    sections: tuple[SectionData, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Content:
        with open_dump(path) as dump:
            state = pb.RuntimeState()
            state.CopyFrom(dump.state)
            kinds = dict.fromkeys(info.kind for info in dump.sections)
            return cls(state, tuple(_section(dump.read_section(kind), dump.parts(kind), kind) for kind in kinds))

    def write(self, path: Path) -> None:
        """Replaces a file there."""
        path.unlink(missing_ok=True)
        write_dump(path, self.state, self.sections)

    @property
    def digest(self) -> str:
        text = hashlib.blake2b(self.state.SerializeToString(deterministic=True), digest_size=16)
        for section in self.sections:
            text.update(section.kind.encode() + bytes(section.data))
        return text.hexdigest()


def _section(data: bytes, parts: Sequence[object], kind: str) -> SectionData:
    first = parts[0]
    shape = tuple(getattr(first, "shape", ()))
    if len(parts) > 1 and shape:
        shape = (sum(getattr(part, "shape")[0] for part in parts), *shape[1:])  # noqa: B009
    return SectionData(kind=kind, data=data, dtype=getattr(first, "dtype", ""), shape=shape)


class Stripping:
    """``content`` is the smallest dump so far that ``reproduces`` says yes to; ``removed`` counts what went, in words.

    ``elements`` also tries to take single entries out of lists that cannot go as a whole, which takes a replay each.
    """

    def __init__(
        self,
        content: Content,
        reproduces: Callable[[Content], bool],
        *,
        elements: bool,
        on_stage: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self.content = self._start = content
        self._reproduces, self._elements, self._on_stage = reproduces, elements, on_stage
        self._broken = len(validate(content.state))

    def run(self) -> None:
        """Until nothing more can go."""
        before = None
        while before != self.content.digest:
            before = self.content.digest
            for name, words in LISTS.items():
                if count := len(getattr(self.content.state, name)):
                    self._on_stage(words)
                    if not self._take(self._without(name, 0, count)) and self._elements and count > 1:
                        drop_runs(count, lambda start, stop, name=name: self._take(self._without(name, start, stop)))  # type: ignore[misc]
            if self._elements:
                self._remove_handled_requests()
            for kind in [section.kind for section in self.content.sections]:
                self._on_stage(f"section {kind}")
                self._take(self._without_section(kind))

    def _remove_handled_requests(self) -> None:
        """Each request that came in, with all that was asked while it was handled: neither goes alone."""
        for one in [exchange.id for exchange in self.content.state.exchanges if exchange.direction == "in"]:
            self._on_stage("requests that came in")
            state = pb.RuntimeState()
            state.CopyFrom(self.content.state)
            for name in ("exchanges", "tool_calls"):
                kept = [entry for entry in getattr(state, name) if one not in (entry.id, entry.within)]
                del getattr(state, name)[:]
                getattr(state, name).extend(kept)
            self._take(Content(state, self.content.sections))

    @property
    def removed(self) -> dict[str, int]:
        """How many of what went."""
        gone = {
            words: len(getattr(self._start.state, name)) - len(getattr(self.content.state, name))
            for name, words in LISTS.items()
        }
        kept = {section.kind for section in self.content.sections}
        gone |= {f"section {one.kind}": 1 for one in self._start.sections if one.kind not in kept}
        return {words: count for words, count in gone.items() if count}

    @property
    def result(self) -> Content:
        """The content with what went in its ledger, and an id of its own. Nothing is new where nothing went."""
        if not self.removed:
            return self.content
        state = pb.RuntimeState()
        state.CopyFrom(self.content.state)
        for name, words in LISTS.items():
            if count := self.removed.get(words, 0):
                grade(state, name, pb.ABSENT, f"{count} {NOTE}")
        if self._start.state.kv.contents_blocks and not state.kv.contents_blocks:
            grade(state, "kv.contents_blocks", pb.ABSENT, NOTE)
        state.manifest.id = hashlib.blake2b(
            f"{state.manifest.id} {self.content.digest}".encode(), digest_size=8
        ).hexdigest()
        return Content(state, self.content.sections)

    def _take(self, candidate: Content) -> bool:
        if candidate.digest == self.content.digest or len(validate(candidate.state)) > self._broken:
            return False
        if not self._reproduces(candidate):
            return False
        self.content = candidate
        return True

    def _without(self, name: str, start: int, stop: int) -> Content:
        state = pb.RuntimeState()
        state.CopyFrom(self.content.state)
        del getattr(state, name)[start:stop]
        for depth, frame in enumerate(state.context_stack, start=1):
            frame.stack_depth = depth
        return Content(state, self.content.sections)

    def _without_section(self, kind: str) -> Content:
        kinds = set(KV_SECTIONS) if kind in KV_SECTIONS else {kind}
        state = pb.RuntimeState()
        state.CopyFrom(self.content.state)
        if kind in KV_SECTIONS:
            state.kv.ClearField("contents_blocks")
            state.kv.contents_selection = "none"
        return Content(state, tuple(one for one in self.content.sections if one.kind not in kinds))
