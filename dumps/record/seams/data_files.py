"""Which files belong to a program's world, and what the dump calls them. Recording and replay ask the same rule.

A program reads two kinds of files: its data (a cache, a configuration, a document), and what it is made of. Only data
is recorded and played; everything else is there again wherever the program can run at all. Not data are

* source and compiled code, packages and their metadata, the interpreter's own folders, version control;
* the system: /proc, /sys, /dev, /usr, and the files of /etc that belong to the resolver, TLS and time zones;
* caches of models and tokenizers (Hugging Face, torch), dumps and context snapshots;
* whatever a loader asks for: importlib, linecache, tokenize, inspect, this project itself. Not what these were only
  given to call, such as a thread's function.

Patterns go before the rule: ``exclude``, then ``include``. They are shell patterns for the file's recorded name or its
absolute path.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from types import FrameType

MAX_ANSWERS = 10_000  # names whose answer is remembered

_ETC = (
    "ca-certificates", "host.conf", "hosts", "ld.so.cache", "localtime", "mime.types", "nsswitch.conf", "os-release",
    "pki", "resolv.conf", "services", "ssl", "timezone",
)  # fmt: skip
_SYSTEM = (
    *("/proc", "/sys", "/dev", "/usr", "/lib", "/lib64", "/bin", "/sbin", "/boot"),
    *(f"/etc/{name}" for name in _ETC),
)
_CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".pth")
_CODE_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", ".git", ".hg"})
_METADATA = (".dist-info", ".egg-info")
_OWN = ("*.pplx", "*.pplx.*", "*/context-snapshot-*.json", "context-snapshot-*.json")
_CACHES = ("~/.cache/huggingface", "~/.cache/torch", "~/.cache/pip", "~/.cache/pplx-replay", "~/.triton")

# Standard library modules that only hand a call on: who asked is the first frame outside of them.
_GO_BETWEENS = frozenset(
    {
        "os", "io", "pathlib", "pathlib._local", "pathlib._abc", "glob", "fnmatch", "shutil", "tempfile", "codecs",
        "genericpath", "posixpath", "contextlib", "functools", "_pyio",
        "dumps.record.seams.files", "dumps.record.seams.file_functions", "dumps.record.seams.file_calls",
        "dumps.record.seams.recorded_raw", "dumps.record.seams.rebind", "dumps.record.seams.opening",
        "dumps.record.seams.listing", "dumps.record.seams.numpy_files",
        "replay.runtime.files", "replay.runtime.raw_files",
    }
)  # fmt: skip
_LOADERS = (
    "importlib", "importlib_metadata", "linecache", "tokenize", "inspect", "traceback", "pkgutil", "zipimport", "runpy",
    "site", "sysconfig", "pkg_resources", "ctypes", "mimetypes", "zoneinfo", "gettext", "locale", "ssl",
    "multiprocessing", "warnings", "pdb", "faulthandler", "platform", "pytest", "_pytest", "pluggy", "dumps", "replay",
)  # fmt: skip
# Functions that call one of the program's own, by module: what asks below them is the program, even where it handed
# over a function of the standard library.
_CALLERS = frozenset(
    {
        ("dumps.record.program", "call"),
        ("dumps.record.seams.tools", "call"), ("dumps.record.seams.tools", "run_async"),
        ("replay.targets.app.entry", "call"), ("replay.runtime.tools", "call"),
        ("replay.runtime.virtual_loop", "__call__"),
        ("multiprocessing.pool", "worker"),
        ("multiprocessing.pool", "mapstar"), ("multiprocessing.pool", "starmapstar"),
    }
)  # fmt: skip


class DataFiles:
    """The rule of this module for one program. Paths are compared as written, symbolic links are not followed."""

    def __init__(self, *, include: Sequence[str] = (), exclude: Sequence[str] = (), cwd: str | None = None) -> None:
        """``cwd``: the folder that names are relative to, by default the current one."""
        self._cwd = os.path.abspath(cwd or os.getcwd())
        self._home = os.path.abspath(os.path.expanduser("~"))
        self._include, self._exclude = tuple(include), tuple(exclude)
        self._answers: dict[str, bool] = {}
        self._code = _SYSTEM + _interpreter() + tuple(os.path.expanduser(folder) for folder in _CACHES)

    def name(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes], folder: str | None = None) -> str:
        """What the dump calls the file: relative to the program's folder where it lies below it, "~/..." where it lies
        below the home folder, else absolute. ``folder`` (a name) is what a relative ``path`` starts from.

        Raises `TypeError` or `ValueError` for what no path can be.
        """
        text = os.fsdecode(path)
        if "\0" in text:
            raise ValueError("embedded null byte")
        if folder is not None and not os.path.isabs(text):
            text = os.path.join(self.path(folder), text)
        full = os.path.abspath(text)
        below = _below(full, self._cwd)
        if below is not None:
            return f"./{below}" if below.startswith("~") else below
        below = _below(full, self._home) if self._home != "/" else None
        return full if below is None else os.path.join("~", below)

    def other_names(self, name: str, folders: Sequence[str]) -> Iterator[str]:
        """What a dump may call the file of ``name`` that was recorded in another folder than this: by its absolute
        path, or relative to one of ``folders``, in which the program lies here."""
        full = self.path(name)
        yield full
        for folder in folders:
            if (below := _below(full, os.path.abspath(folder))) is not None:
                yield below

    def path(self, name: str) -> str:
        """The absolute path here of a recorded name."""
        if name == "~" or name.startswith("~/"):
            return os.path.normpath(os.path.join(self._home, name[2:]))
        return os.path.normpath(os.path.join(self._cwd, name))

    def is_data(self, name: str) -> bool:
        """Whether the file of this name is the program's data."""
        answer = self._answers.get(name)
        if answer is None:
            answer = self._decide(name)
            if len(self._answers) < MAX_ANSWERS:
                self._answers[name] = answer
        return answer

    def _decide(self, name: str) -> bool:
        path = self.path(name)
        for patterns, answer in ((self._exclude, False), (self._include, True), (_OWN, False)):
            if any(fnmatchcase(name, pattern) or fnmatchcase(path, pattern) for pattern in patterns):
                return answer
        parts = path.split(os.sep)
        return not (
            path.endswith(_CODE)
            or any(part in _CODE_FOLDERS or part.endswith(_METADATA) for part in parts)
            or any(_below(path, folder) is not None for folder in self._code)
        )


def asked_by_loader(frame: FrameType | None) -> bool:
    """Whether ``frame`` and its callers are a loader's: code is looked for, not data. Safe to call in any thread."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__") or "")
        if frame.f_code.co_name == "_get_default_tempdir" and module == "tempfile":
            return True  # once in a process, whenever that is
        if module not in _GO_BETWEENS:
            if (module, frame.f_code.co_name) in _CALLERS:
                return False
            return module.split(".", 1)[0] in _LOADERS
        frame = frame.f_back
    return True


def _interpreter() -> tuple[str, ...]:
    """Folders of the interpreter and of what is installed for it. Not its prefix itself: a program may live in it."""
    found = {path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}:
        found |= {os.path.join(prefix, name) for name in ("lib", "lib64", "bin", "include", "share")}
    return tuple(os.path.abspath(path) for path in sorted(found))


def _below(path: str, folder: str) -> str | None:
    """``path`` relative to ``folder``, "." for the folder itself, None where it lies elsewhere."""
    if path == folder:
        return "."
    stem = folder.rstrip(os.sep) + os.sep
    return path[len(stem) :] if path.startswith(stem) else None
