"""What is known of a replayed program's files where the recording does not answer the call itself, from other calls."""

from __future__ import annotations

import os
import stat
from typing import Literal

from dumps.record.seams.listing import FOLDER, unpack
from dumps.schema import state_pb2 as pb
from replay.runtime.file_script import Script, parent
from replay.runtime.overlay import Node, Overlay
from replay.runtime.syscalls import status

Known = Literal["file", "folder", "absent"]


class FileFacts:
    """By recorded name, as of the present epoch of each path."""

    def __init__(self, script: Script, overlay: Overlay) -> None:
        self._script, self._overlay = script, overlay

    def derive(self, name: str) -> Known | None:
        """What the recording says of a path now, from other calls than the one that is asked for."""
        for entry in reversed(self._script.history(name).now()):
            call = entry.call
            if call.name in ("rename", "link", "symlink"):  # about two paths: which of them, nobody says
                continue
            if call.errno_name in ("ENOENT", "ENOTDIR"):
                return "absent"
            if call.errno_name == "EEXIST" and call.args[0] == name:
                return "folder" if call.name == "mkdir" else "file"
            if entry.failed:
                continue
            if call.name in ("stat", "lstat", "fstat"):
                return "folder" if stat.S_ISDIR(status(call).st_mode) else "file"
            if entry.session is not None:
                return "folder" if entry.session.kind == "folder" else "file"
            if call.name in ("listdir", "scandir"):
                return "folder"
        return self._derive_from_folder(name)

    def _derive_from_folder(self, name: str) -> Known | None:
        folder = parent(name)
        if not folder:
            return None
        node = self._overlay.get(folder)
        if node is not None and node.kind != "link" and not (node.kind == "folder" and not node.new):
            return "absent"
        for entry in reversed(self._script.history(folder).now()):
            if entry.call.errno_name == "ENOENT" and entry.kind not in ("rename", "link"):
                return "absent"
            if entry.kind in ("listdir", "scandir") and not entry.failed and not entry.call.data_partial:
                there = {one: what for what, one in unpack(entry.call.data)}
                what = there.get(os.path.basename(name))
                if what is None:
                    return "absent"
                if what:
                    return "folder" if what == FOLDER else "file"
                return None
        return None

    def size(self, name: str) -> int | None:
        """The size that was seen last."""
        for entry in reversed(self._script.history(name).before()):
            if entry.failed:
                continue
            if entry.kind in ("stat", "lstat", "fstat"):
                return status(entry.call).st_size
            if entry.session is not None:
                return entry.session.size
        return None

    def is_folder(self, source: str, target: str) -> bool:
        """Whether what was renamed is a folder, by everything that was recorded of it under either name."""
        for entry in (*reversed(self._script.history(source).before()), *self._script.history(target).now()):
            if entry.failed:
                continue
            if entry.kind in ("stat", "lstat", "fstat"):
                return stat.S_ISDIR(status(entry.call).st_mode)
            if entry.kind in ("listdir", "scandir", "rmdir", "mkdir"):
                return True
            if entry.session is not None:
                return entry.session.kind == "folder"
        below = (source.rstrip("/") + "/", target.rstrip("/") + "/")
        return any(name.startswith(below) for name in self._script.names())

    def contradict(self, name: str, call: pb.Syscall, node: Node | None) -> bool:
        """Whether the recorded error of a call cannot be, after what the replayed program did itself."""
        if node is None or self._script.history(name).leads:
            return False
        if call.errno_name == "ENOENT":
            return node.kind != "gone"
        return call.errno_name == "EEXIST" and node.kind == "gone"


def what_is(node: Node | None) -> Known | None:
    """What the replay itself left at a path; None where it changed nothing."""
    if node is None:
        return None
    return "absent" if node.kind == "gone" else "folder" if node.kind == "folder" else "file"
