"""The files of a replay: the recording's answers, under what the replayed program changed.

While a program changes a path as the recorded one did, the recording answers, also for what others did to the path in
between. Once it goes its own way (it wrote something else, or left a change out), its own changes come first, and
recorded errors count only as far as they can still be. What neither knows is an `UnrecordedFile`.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
import threading
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from dumps.record.seams.listing import FILE, FOLDER, LINK, unpack
from dumps.record.seams.opening import flags_text, writes
from dumps.schema import state_pb2 as pb
from replay.runtime.errors import UnrecordedFile
from replay.runtime.file_facts import FileFacts, what_is
from replay.runtime.file_script import OPEN_READ, OPEN_WRITE, Entry, Script, Session
from replay.runtime.open_file import OpenFile
from replay.runtime.overlay import Content, Node, Overlay
from replay.runtime.syscalls import Syscalls, content_of, make_status, os_error, raise_error, status, whole_data

MAX_LINKS = 40


class Clock(Protocol):
    """The part of the virtual clock that files need."""

    def wall_ns(self) -> int: ...
    def advance(self, ns: int) -> None: ...
    def catch_up(self, monotonic_ns: int) -> None: ...


class FileModel:
    """Answers each kind of call by recorded name. ``shown`` is the path as the program wrote it, for its errors.

    Not safe for several threads at once: take ``lock``.
    """

    def __init__(self, script: Script, handlers: Syscalls, clock: Clock | None, *, new_files: bool = False) -> None:
        """``new_files``: paths that were never recorded may be created; they live in the overlay."""
        self.script, self.overlay = script, Overlay()
        self.facts = FileFacts(script, self.overlay)
        self.lock = threading.RLock()
        self.unrecorded: list[UnrecordedFile] = []
        self.handlers, self._clock, self._new_files = handlers, clock, new_files

    def knows(self, name: str) -> bool:
        return name in self.script or self.overlay.get(name) is not None

    # Opening

    def open(self, name: str, flags: int, shown: Any) -> OpenFile:
        """Raises `OSError` and `UnrecordedFile`."""
        name = self._follow(name)
        text = flags_text(flags)
        history = self.script.history(name)
        entry = history.change(OPEN_WRITE) if writes(text) else history.query(OPEN_READ, OPEN_WRITE)
        node = self.overlay.get(name)

        def play() -> OpenFile:
            found = entry
            if found is not None and found.failed:
                if not self.facts.contradict(name, found.call, node):
                    self.pass_time(found.call)
                    raise_error(found.call, shown)
                found = None
            if found is None:
                self._check_open(name, node, flags, shown)
            else:
                self.pass_time(found.call)
            return self._opened(name, None if found is None else found.session, node, flags, shown)

        result = self.ask("open", (shown, text), entry, play)
        if isinstance(result, OpenFile):
            return result
        content = Content(size=0, empty=True)
        content.write(0, content_of(result))
        return OpenFile(self, name, shown, None, content, flags)

    def _check_open(self, name: str, node: Node | None, flags: int, shown: Any) -> None:
        """Whether an open that was not recorded works all the same, by what is known."""
        known = what_is(node) or self.facts.derive(name)
        writing = writes(flags_text(flags))
        if known == "absent" and not flags & os.O_CREAT:
            raise os_error(errno.ENOENT, shown)
        if known in ("file", "folder") and flags & os.O_CREAT and flags & os.O_EXCL:
            raise os_error(errno.EEXIST, shown)
        if known == "folder" and writing:
            raise os_error(errno.EISDIR, shown)
        if known is None and not (self._new_files and flags & os.O_CREAT):
            raise self.unknown("open", name)

    def _opened(self, name: str, session: Session | None, node: Node | None, flags: int, shown: Any) -> OpenFile:
        content = node.content if node is not None and node.kind == "file" else None
        size = session.size if session is not None else None
        if size is not None and not self.script.history(name).own_way and (content is None or content.size != size):
            content = node = None  # others changed it, and the recording saw that
        if writes(flags_text(flags)):
            if content is None:
                if node is not None or (session is None and self.facts.derive(name) == "absent"):
                    size = 0
                empty = bool(flags & os.O_TRUNC) or size == 0
                content = Content(size=0 if empty else size, empty=empty, origin=name)
            elif flags & os.O_TRUNC:
                content.truncate(0)
            self.overlay.nodes[name] = Node("file", content, mode=node.mode if node is not None else 0o644)
        return OpenFile(self, name, shown, session, content, flags)

    # Questions

    def status(self, kind: str, name: str, shown: Any) -> os.stat_result:
        """``kind`` is "stat", "lstat" or "fstat"."""
        if kind != "lstat":
            name = self._follow(name)
        others = [one for one in ("lstat", "stat", "fstat") if one != kind]
        entry = self.script.history(name).query(kind, *others)
        node = self.overlay.get(name)

        def play() -> os.stat_result:
            recorded: os.stat_result | None = self._recorded(name, entry, node, shown)
            if node is None or (recorded is not None and self.script.history(name).leads):
                return recorded if recorded is not None else self._derived_status(name, shown)
            if node.kind == "gone":
                raise os_error(errno.ENOENT, shown)
            size = node.content.size if node.content is not None else None
            is_kind = {"file": stat.S_ISREG, "folder": stat.S_ISDIR, "link": stat.S_ISLNK}[node.kind]
            if recorded is not None and is_kind(recorded.st_mode) and (size is None or size == recorded.st_size):
                return recorded
            return self._made_status(name, node.kind, size or 0, node.mode)

        result = self.ask(kind, (shown,), entry, play)
        if isinstance(result, dict):  # a handler's
            return make_status(result)
        found: os.stat_result = result
        return found

    def access(self, name: str, mode: int, shown: Any) -> bool:
        name = self._follow(name)
        entry = self.script.history(name).query("access")
        node = self.overlay.get(name)

        def play() -> bool:
            known = what_is(node)
            if known is not None and (entry is None or not self.script.history(name).leads):
                return known != "absent"
            if entry is not None and not entry.failed:
                return entry.call.ret not in ("0", "")
            known = self.facts.derive(name)
            if known is None:
                raise self.unknown("access", name)
            return known != "absent"

        return bool(self.ask("access", (shown, mode), entry, play))

    def listing(self, kind: str, name: str, shown: Any) -> list[tuple[str, str]]:
        """(what it is, name) pairs; what it is stays "" where only `os.listdir` was recorded."""
        name = self._follow(name)
        entry = self.script.history(name).query(kind, "listdir" if kind == "scandir" else "scandir")
        node = self.overlay.get(name)

        def play() -> list[tuple[str, str]]:
            self._recorded(name, entry, node, shown)
            if node is not None and node.kind != "folder":
                number = errno.ENOENT if node.kind == "gone" else errno.ENOTDIR
                raise os_error(number, shown)
            if entry is not None and not entry.failed:
                there = {one: what for what, one in unpack(whole_data(entry.call))}
            elif node is not None and node.new:
                there = {}
            elif self.facts.derive(name) == "absent":
                raise os_error(errno.ENOENT, shown)
            else:
                raise self.unknown(kind, name)
            for child, changed in self.overlay.children(name).items():
                if changed.kind == "gone":
                    there.pop(child, None)
                else:
                    there[child] = {"file": FILE, "folder": FOLDER, "link": LINK}[changed.kind]
            return [(what, one) for one, what in there.items()]

        result = self.ask(kind, (shown,), entry, play)
        return [one if isinstance(one, tuple) else ("", os.fsdecode(one)) for one in result]

    def read_link(self, name: str, shown: Any) -> str:
        entry = self.script.history(name).query("readlink")
        node = self.overlay.get(name)

        def play() -> str:
            self._recorded(name, entry, node, shown)
            if node is not None and node.kind == "link":
                return node.target
            if entry is not None and node is None:
                return os.fsdecode(whole_data(entry.call))
            known = what_is(node) or self.facts.derive(name)
            if known is None:
                raise self.unknown("readlink", name)
            number = errno.ENOENT if known == "absent" else errno.EINVAL
            raise os_error(number, shown)

        return os.fsdecode(self.ask("readlink", (shown,), entry, play))

    def touch(self, kind: str, name: str, shown: Any, args: tuple[Any, ...]) -> None:
        """chmod, utime, fsync, and whatever else leaves a file's bytes alone."""
        name = self._follow(name)
        entry = self.script.history(name).query(kind)
        node = self.overlay.get(name)

        def play() -> None:
            self._recorded(name, entry, node, shown)
            known = what_is(node) or ("file" if entry is not None else self.facts.derive(name))
            if known == "absent":
                raise os_error(errno.ENOENT, shown)
            if known is None:
                raise self.unknown(kind, name)
            if kind == "chmod" and node is not None and args and isinstance(args[0], int):
                node.mode = stat.S_IMODE(args[0])

        self.ask(kind, (shown, *args), entry, play)

    # Changes

    def make_folder(self, name: str, shown: Any, mode: int) -> None:
        entry = self.script.history(name).change("mkdir")
        node = self.overlay.get(name)

        def play() -> None:
            self._recorded(name, entry, node, shown)
            known = what_is(node) or (self.facts.derive(name) if entry is None or entry.failed else "absent")
            if known is None and not self._new_files:
                raise self.unknown("mkdir", name)
            if known in ("file", "folder"):
                raise os_error(errno.EEXIST, shown)
            self.overlay.nodes[name] = Node("folder", mode=mode)

        self.ask("mkdir", (shown, mode), entry, play)

    def remove(self, kind: str, name: str, shown: Any) -> None:
        """``kind`` is "unlink" or "rmdir"."""
        entry = self.script.history(name).change(kind)
        node = self.overlay.get(name)

        def play() -> None:
            self._recorded(name, entry, node, shown)
            known = what_is(node) or (self.facts.derive(name) if entry is None or entry.failed else "file")
            if known is None:
                raise self.unknown(kind, name)
            if known == "absent":
                raise os_error(errno.ENOENT, shown)
            if node is not None and node.kind != "link" and (node.kind == "folder") != (kind == "rmdir"):
                number = errno.ENOTDIR if kind == "rmdir" else errno.EISDIR
                raise os_error(number, shown)
            if kind == "rmdir" and any(one.kind != "gone" for one in self.overlay.children(name).values()):
                raise os_error(errno.ENOTEMPTY, shown)
            self.overlay.nodes[name] = Node("gone")

        self.ask(kind, (shown,), entry, play)

    def rename(self, source: str, target: str, shown: tuple[Any, Any]) -> None:
        history, other = self.script.history(source), self.script.history(target)
        entry = history.change("rename")
        if entry is not None and entry.call.args[:2] == [source, target]:
            other.change("rename")
        node = self.overlay.get(source)

        def play() -> None:
            self._recorded(source, entry, node, *shown)
            known = what_is(node) or (self.facts.derive(source) if entry is None or entry.failed else "file")
            if known is None:
                raise self.unknown("rename", source)
            if known == "absent":
                raise os_error(errno.ENOENT, *shown)
            if source == target:
                return
            moved = node
            if moved is None and self.facts.is_folder(source, target):
                moved = Node("folder", mode=0o755, new=False)
            if moved is None:
                moved = Node("file", Content(size=self.facts.size(source), empty=False, origin=source))
            self.overlay.move(source, target, moved)

        self.ask("rename", shown, entry, play)

    def link(self, kind: str, name: str, points_to: str, target: str, shown: tuple[Any, Any]) -> None:
        """``kind`` "symlink" or "link"; ``points_to`` as it was written, ``target`` by recorded name."""
        entry = self.script.history(name).change(kind)
        node = self.overlay.get(name)

        def play() -> None:
            self._recorded(name, entry, node, *shown)
            known = what_is(node) or (self.facts.derive(name) if entry is None or entry.failed else "absent")
            if known is None and not self._new_files:
                raise self.unknown(kind, name)
            if known in ("file", "folder"):
                raise os_error(errno.EEXIST, *shown)
            if kind == "symlink":
                self.overlay.nodes[name] = Node("link", target=points_to, mode=0o777)
                return
            there = self.overlay.get(target)
            if there is None:
                there = Node("file", Content(size=self.facts.size(target), empty=False, origin=target))
                self.overlay.nodes[target] = there
            self.overlay.nodes[name] = there

        self.ask(kind, shown, entry, play)

    def truncate(self, name: str, size: int, shown: Any, content: Content | None = None) -> None:
        name = self._follow(name)
        entry = self.script.history(name).change("truncate")
        node = self.overlay.get(name)

        def play() -> None:
            self._recorded(name, entry, node, shown)
            there = content or (node.content if node is not None else None)
            if there is None:
                if entry is None and self.facts.derive(name) != "file":
                    raise self.unknown("truncate", name)
                there = Content(size=self.facts.size(name), empty=False, origin=name)
                self.overlay.nodes[name] = Node("file", there)
            there.truncate(size)

        self.ask("truncate", (shown, size), entry, play)

    # What they all use

    def unknown(self, call: str, name: str, detail: str = "") -> UnrecordedFile:
        """The error for a call that nothing answers; it is kept in ``unrecorded`` too, as a program may swallow it."""
        nearest = "" if name in self.script else next(iter(difflib.get_close_matches(name, self.script.names(), 1)), "")
        error = UnrecordedFile(call, name, nearest, detail)
        self.unrecorded.append(error)
        return error

    def ask(
        self, kind: str, args: tuple[Any, ...], recorded: Entry | pb.Syscall | None, play: Callable[[], Any]
    ) -> Any:
        """The answer of a handler for calls of this ``kind``, else of ``play``."""
        call = recorded.call if isinstance(recorded, Entry) else recorded
        return self.handlers.ask(kind, args, call, play)

    def sessions(self, *names: str) -> list[Session]:
        """Recorded opens of these paths, those of the present epoch first."""
        found: list[Session] = []
        for name in names:
            found += [one for one in self.script.history(name).sessions() if one not in found]
        return found

    def pass_time(self, call: pb.Syscall) -> None:
        """It is at least as late as when the recorded call began, and the time that it took goes by."""
        if self._clock is not None:
            self._clock.catch_up(call.time_ns)
            self._clock.advance(call.duration_ns)

    def _recorded(self, name: str, entry: Entry | None, node: Node | None, *shown: Any) -> Any:
        """Raise the recorded error unless the program's own changes contradict it. The status, where it is one."""
        if entry is None:
            return None
        self.pass_time(entry.call)
        if entry.failed:
            if not self.facts.contradict(name, entry.call, node):
                raise_error(entry.call, *shown)
            return None
        return status(entry.call) if entry.kind in ("stat", "lstat", "fstat") else None

    def _derived_status(self, name: str, shown: Any) -> os.stat_result:
        known = self.facts.derive(name)
        if known is None:
            raise self.unknown("stat", name)
        if known == "absent":
            raise os_error(errno.ENOENT, shown)
        return self._made_status(name, known, self.facts.size(name) or 0, 0o755 if known == "folder" else 0o644)

    def _made_status(self, name: str, kind: str, size: int, mode: int) -> os.stat_result:
        now = self._clock.wall_ns() if self._clock is not None else 0
        bits = {"file": stat.S_IFREG, "folder": stat.S_IFDIR, "link": stat.S_IFLNK}[kind]
        return make_status(
            {
                "st_mode": bits | mode,
                "st_ino": zlib.crc32(name.encode("utf-8", "surrogateescape")),
                "st_nlink": 1,
                "st_uid": os.getuid(),
                "st_gid": os.getgid(),
                "st_size": size,
                **{f"st_{one}time_ns": now for one in "amc"},
            }
        )

    def _follow(self, name: str) -> str:
        """Through the links that the replay made; recorded ones answer under their own name."""
        for _ in range(MAX_LINKS):
            node = self.overlay.nodes.get(name)
            if node is None or node.kind != "link":
                return name
            name = os.path.normpath(os.path.join(os.path.dirname(name), node.target))
        raise os_error(errno.ELOOP, name)
