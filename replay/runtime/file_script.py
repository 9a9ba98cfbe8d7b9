"""The recorded file calls, by path and in order.

Each path has a history: what the program asked about it, and what it changed. A change that worked (it was written,
removed, renamed, made) begins a new *epoch* of the path. A replayed program that asks is given the recorded answers of
the epoch it is in, in order, and the last one again when it asks more often: between two changes of its own, that is
how the world looked. So a program that skips a question, or asks once more, does not get the answers out of step.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dumps.record.seams.opening import writes
from dumps.schema import state_pb2 as pb

OPEN_READ: Final = "open to read"
OPEN_WRITE: Final = "open to write"
CHANGES: Final = frozenset({OPEN_WRITE, "unlink", "rmdir", "mkdir", "rename", "symlink", "link", "truncate"})


@dataclass(slots=True, eq=False)
class Session:
    """One recorded open that worked, and what was done with its descriptor."""

    call: pb.Syscall
    name: str
    reads: dict[int, deque[pb.Syscall]] = field(default_factory=dict)
    writes: list[pb.Syscall] = field(default_factory=list)
    ends: deque[pb.Syscall] = field(default_factory=deque)  # seeks from the end
    _at: int = 0
    _written: int = 0
    _starts: list[int] = field(default_factory=list)

    @property
    def flags(self) -> str:
        return self.call.args[1] if len(self.call.args) > 1 else "O_RDONLY"

    @property
    def size(self) -> int | None:
        """Bytes when it was opened."""
        return number(self.call, 2)

    @property
    def bytes_written(self) -> int:
        return sum(number(call, "ret") or 0 for call in self.writes if not call.errno_name)

    @property
    def kind(self) -> str:
        return self.call.args[4] if len(self.call.args) > 4 else "file"

    def add(self, call: pb.Syscall) -> None:
        if call.name in ("read", "pread"):
            offset = number(call, 2)
            at = self._at if offset is None else offset
            self.reads.setdefault(at, deque()).append(call)
            if not call.errno_name:
                self._at = at + (number(call, "ret") or 0)
        elif call.name in ("write", "pwrite"):
            self.writes.append(call)
        elif call.name == "lseek":
            self.ends.append(call)

    def peek(self, at: int) -> tuple[pb.Syscall, int] | None:
        """The recorded read that answers one at offset ``at``, and how far into its data that lies."""
        if at in self.reads:
            return self.reads[at][0], 0
        if len(self._starts) != len(self.reads):
            self._starts = sorted(self.reads)
        index = bisect_right(self._starts, at) - 1
        # Pieces may overlap: one that began earlier may reach farther.
        for start in reversed(self._starts[max(index - 8, 0) : index + 1]):
            call = self.reads[start][-1]
            if not call.errno_name and at - start < (number(call, "ret") or 0):
                return call, at - start
        return None

    def take(self, at: int) -> None:
        """`peek`'s answer was given. The last one at an offset stays, for whoever reads there again."""
        queue = self.reads.get(at)
        if queue is not None and len(queue) > 1:
            queue.popleft()

    def ends_by(self, at: int) -> bool:
        """Whether the file was seen to end at ``at`` or before it."""
        if self.kind == "file" and self.size is not None and at >= self.size:
            return True
        return any(
            start <= at and not queue[-1].errno_name and queue[-1].ret == "0" and number(queue[-1], 1) != 0
            for start, queue in self.reads.items()
        )

    def write_at(self, at: int, size: int) -> tuple[pb.Syscall | None, int]:
        """The recorded error that a write of ``size`` bytes at ``at`` meets now, or None and how many it writes."""
        while self._written < len(self.writes):
            call = self.writes[self._written]
            start = number(call, 2)
            if start is None:
                start = at
            if call.errno_name:
                if start > at:  # not there yet: what fits before it
                    return None, min(size, start - at)
                self._written += 1
                if start == at:
                    return call, 0
                continue
            end = start + (number(call, "ret") or 0)
            if at >= end:
                self._written += 1
                continue
            following = self.writes[self._written + 1] if self._written + 1 < len(self.writes) else None
            stops = (number(call, "ret") or 0) < (number(call, 1) or 0) or (
                following is not None and following.errno_name != "" and number(following, 2) == end
            )
            return None, min(size, end - at) if stops and at >= start else size
        return None, size


@dataclass(slots=True, eq=False)
class Entry:
    """One recorded call about a path, in its epoch; a change that worked ends the epoch."""

    call: pb.Syscall
    kind: str
    epoch: int
    session: Session | None = None

    @property
    def failed(self) -> bool:
        return bool(self.call.errno_name)


class History:
    """What was recorded about one path. ``epoch`` is that of the replay."""

    def __init__(self) -> None:
        self.epoch = 0
        self.own_way = False  # the replay changed the path in another way than the recorded program did
        self._again = False  # the last answer had been given before
        self._asked = False
        self._recorded = 0  # epochs seen while it was built
        self._by_epoch: dict[int, list[Entry]] = {}
        self._answers: dict[tuple[str, int], list[Entry]] = {}
        self._changes: dict[str, list[Entry]] = {}
        self._given: Counter[tuple[str, int] | str] = Counter()

    @property
    def recorded(self) -> bool:
        return bool(self._by_epoch)

    def add(self, kind: str, call: pb.Syscall) -> Entry:
        """The next call of the recording."""
        entry = Entry(call, kind, self._recorded)
        self._by_epoch.setdefault(entry.epoch, []).append(entry)
        self._answers.setdefault((kind, entry.epoch), []).append(entry)
        if kind in CHANGES:
            self._changes.setdefault(kind, []).append(entry)
            if not entry.failed:
                self._recorded += 1
        return entry

    @property
    def unread(self) -> bool:
        """Whether the recorded program opened it to read, and the replayed one has not asked after it in any way."""
        opened = (entry for (kind, _), there in self._answers.items() if kind == OPEN_READ for entry in there)
        return not self._given and any(not entry.failed for entry in opened)

    @property
    def asked(self) -> bool:
        """Whether it was recorded, and the replay has asked after it in any way."""
        return self.recorded and self._asked

    @property
    def leads(self) -> bool:
        """Whether the answer just given comes before what the replay changed itself."""
        return not self.own_way and not self._again

    def query(self, *kinds: str) -> Entry | None:
        """The recorded answer to a question now; of several kinds the first that has one."""
        self._asked = True
        for kind in kinds:
            there = self._answers.get((kind, self.epoch))
            if there:
                given = self._given[kind, self.epoch]
                self._given[kind, self.epoch] = given + 1
                self._again = given >= len(there)
                return there[min(given, len(there) - 1)]
        return None

    def change(self, kind: str) -> Entry | None:
        """The recorded outcome of a change now. One that worked takes the path to its next epoch."""
        self._asked = True
        there = self._changes.get(kind, [])
        while self._given[kind] < len(there):
            found = there[self._given[kind]]
            self._given[kind] += 1
            if found.epoch >= self.epoch:
                self._again = False
                self.own_way |= found.epoch > self.epoch
                self.epoch = found.epoch if found.failed else found.epoch + 1
                return found
        self.own_way = True
        return None

    def now(self) -> list[Entry]:
        """Everything that was seen of the path in this epoch, in order."""
        return self._by_epoch.get(self.epoch, [])

    def before(self) -> list[Entry]:
        """Everything that was seen of the path up to this epoch, in order."""
        return [one for epoch, there in self._by_epoch.items() if epoch <= self.epoch for one in there]

    def sessions(self) -> list[Session]:
        """What was opened up to this epoch; the latest first."""
        return [one.session for one in reversed(self.before()) if one.session is not None]


class Script:
    """All recorded file calls. ``histories`` by recorded name."""

    def __init__(self, calls: Iterable[pb.Syscall]) -> None:
        self.histories: dict[str, History] = {}
        descriptors: dict[str, Session] = {}
        latest: dict[str, Session] = {}  # by path, for calls that do not say their descriptor
        for call in calls:
            if not call.args:
                continue
            name = call.args[0]
            if call.name in ("read", "pread", "write", "pwrite", "lseek"):
                session = descriptors.get(call.args[3] if len(call.args) > 3 else "") or latest.get(name)
                if session is not None and session.name == name:
                    session.add(call)
                continue
            entry = self._add(name, call)
            if call.name == "rename" and len(call.args) > 1:
                self._add(call.args[1], call)
            if call.name == "open" and not call.errno_name:
                entry.session = descriptors[call.ret] = latest[name] = Session(call, name)

    def __contains__(self, name: str) -> bool:
        return name in self.histories and self.histories[name].recorded

    def names(self) -> list[str]:
        """Paths of which something was recorded."""
        return [name for name, history in self.histories.items() if history.recorded]

    def unread(self) -> list[str]:
        """Files that the recorded program read, and the replayed one has not asked after yet."""
        return [name for name, history in self.histories.items() if history.unread]

    @property
    def asked(self) -> bool:
        """Whether the replay has asked after anything that was recorded."""
        return any(history.asked for history in self.histories.values())

    def history(self, name: str) -> History:
        """An empty one where nothing was recorded."""
        return self.histories.setdefault(name, History())

    def _add(self, name: str, call: pb.Syscall) -> Entry:
        history = self.histories.setdefault(name, History())
        kind = call.name
        if kind == "open":
            kind = OPEN_WRITE if len(call.args) > 1 and writes(call.args[1]) else OPEN_READ
        return history.add(kind, call)


def number(call: pb.Syscall, where: int | str) -> int | None:
    """An argument by index, or "ret", as a number; None where there is none."""
    try:
        return int(call.ret if isinstance(where, str) else call.args[where], 0)
    except (ValueError, IndexError):
        return None


def parent(name: str) -> str:
    """The recorded name of the folder that holds ``name``; "" above the program's own folder."""
    if name in (".", "/", "~"):
        return ""
    return os.path.dirname(name) or "."
