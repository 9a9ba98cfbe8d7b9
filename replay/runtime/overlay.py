"""What a replayed program changed about its files: kept in memory, seen by its later reads, gone at the end."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Literal


class Content:
    """The bytes of a file that the replay writes. Where it was not written, the recording is asked.

    ``size`` is None while nobody knows: a file that is opened to append, of which no size was recorded.
    """

    def __init__(self, *, size: int | None, empty: bool, origin: str = "") -> None:
        """``empty``: it was created or truncated, so that every byte is known; else ``size`` is the recorded file's,
        and ``origin`` the name under which its bytes were recorded."""
        self.size, self.origin = size, origin
        self._data = bytearray()
        self._recorded = 0 if empty else size  # bytes from the start that the recording knows; None is all
        self._written: list[tuple[int, int]] = []  # [start, end), ascending, apart

    def write(self, at: int, data: bytes) -> None:
        end = at + len(data)
        if not data:
            return
        if len(self._data) < end:
            self._data.extend(bytes(end - len(self._data)))
        self._data[at:end] = data
        self.size = end if self.size is None else max(self.size, end)
        start = at
        for span in [span for span in self._written if span[0] <= end and at <= span[1]]:
            self._written.remove(span)
            start, end = min(start, span[0]), max(end, span[1])
        insort(self._written, (start, end))

    def truncate(self, size: int) -> None:
        del self._data[size:]
        self._written = [(start, min(end, size)) for start, end in self._written if start < size]
        if self._recorded is None or self._recorded > size:
            self._recorded = size
        self.size = size

    def read(self, at: int, size: int) -> bytes | None:
        """At most ``size`` bytes from ``at``, b"" at the end; None where the recording has to answer."""
        if self.size is not None and at >= self.size:
            return b""
        for start, end in self._written:
            if start <= at < end:
                return bytes(self._data[at : min(end, at + size)])
        if self._recorded is None or at < self._recorded or self.size is None:
            return None
        # Beyond what was recorded and never written: a hole.
        until = min(self.unwritten_until(at), self.size, at + size)
        return bytes(until - at)

    def whole(self) -> bytes | None:
        """All of it, None where the recording knows a part."""
        if self.size is None or (self._recorded != 0 and self._written != [(0, self.size)]):
            return None
        return bytes(self._data) + bytes(self.size - len(self._data))

    def unwritten_until(self, at: int) -> int:
        """Where the next written piece begins, or what the recording knows ends."""
        starts = [start for start, _ in self._written if start > at]
        if self._recorded is not None and at < self._recorded:
            starts.append(self._recorded)
        return min(starts, default=2**62)


@dataclass(slots=True)
class Node:
    """What became of one path. A folder that was made in the replay held nothing, whatever the recording says; one that
    was only moved is not ``new``, and holds what was recorded under its new name."""

    kind: Literal["file", "folder", "link", "gone"]
    content: Content | None = None
    target: str = ""  # of a link: a recorded name
    mode: int = 0o644
    new: bool = True


@dataclass(slots=True)
class Overlay:
    """Changed paths by recorded name."""

    nodes: dict[str, Node] = field(default_factory=dict)

    def get(self, name: str) -> Node | None:
        """What became of the path, also by what became of a folder above it; None where nothing did."""
        node = self.nodes.get(name)
        if node is not None:
            return node
        above = name
        while "/" in above:
            above = above.rpartition("/")[0]
            holder = self.nodes.get(above)
            if holder is not None and holder.kind == "folder" and not holder.new:
                return None
            if holder is not None and holder.kind != "link":
                return Node("gone")  # in a new folder, below a removed one or a file: nothing else is there
        return None

    def children(self, folder: str) -> dict[str, Node]:
        """Changed paths directly in a folder, by their last part."""
        stem = "" if folder == "." else folder.rstrip("/") + "/"
        return {
            name[len(stem) :]: node
            for name, node in self.nodes.items()
            if name.startswith(stem) and "/" not in name[len(stem) :] and name != folder
            and (stem or not name.startswith(("~", "/")))
        }  # fmt: skip

    def move(self, source: str, target: str, node: Node) -> None:
        """``node`` stands at ``target`` now, with everything changed below it; ``source`` is gone."""
        stem = source + "/"
        below = {name: one for name, one in self.nodes.items() if name.startswith(stem)}
        for name in below:
            del self.nodes[name]
        self.nodes[source] = Node("gone")
        for name in [name for name in self.nodes if name.startswith(target + "/")]:
            del self.nodes[name]
        self.nodes[target] = node
        for name, one in below.items():
            self.nodes[target + name[len(source) :]] = one
