"""Which files a worker may read and write: what Python and the job's own replay need, and nothing else.

The lists name what exists when the worker starts. Links are followed here, once, so that a folder of weights that are
links into a store works, and so that no link made later leads out.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/sys")
# By name: beside them lie the folders of all other processes, with their command lines and environment.
_PROCESS = (
    "/proc/self", "/proc/bus", "/proc/cgroups", "/proc/cmdline", "/proc/cpuinfo", "/proc/devices", "/proc/diskstats",
    "/proc/driver", "/proc/filesystems", "/proc/interrupts", "/proc/loadavg", "/proc/meminfo", "/proc/misc",
    "/proc/modules", "/proc/partitions", "/proc/softirqs", "/proc/stat", "/proc/swaps", "/proc/sys", "/proc/uptime",
    "/proc/version", "/proc/vmstat", "/proc/zoneinfo",
)  # fmt: skip
# By name: beside them lie shadow, private keys and the settings of every service.
_SETTINGS = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/localtime",
    "/etc/timezone", "/etc/locale.conf", "/etc/locale.alias", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols",
    "/etc/mime.types", "/etc/os-release", "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf",
    "/etc/pki/tls", "/etc/ca-certificates", "/etc/alternatives", "/etc/OpenCL",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_GPU_DEVICES = ("nvidia*", "dxg", "shm")
_GPU_READ = ("/run/nvidia-persistenced", "/etc/nvidia", "/var/lib/nvidia")
_DESCRIPTOR = re.compile(r"/proc/([0-9]+)/fd/[a-z_]+:")
_OF_A_PROCESS = re.compile(r"/proc/([0-9]+)(?:/|$)")
_MAX_LINKS = 4096  # of a folder of weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Real paths of files and folders (those with all they hold). ``write`` includes reading, ``devices`` device calls
    too."""

    read: tuple[str, ...]
    write: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    _readable: tuple[str, ...] = field(init=False, repr=False)
    _writable: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        writable = (*self.write, *self.devices)
        object.__setattr__(self, "_writable", tuple(f"{path}/" for path in writable))
        object.__setattr__(self, "_readable", tuple(f"{path}/" for path in self.read))

    def may_read(self, path: str) -> bool:
        """Whether ``path`` can be read. What does not exist can be looked for anywhere.

        Called for every file that Python opens: the common case must stay one comparison of text.
        """
        # Below /proc there are links that no text tells of.
        if f"{path}/".startswith(self._readable) and "/../" not in path and not path.startswith("/proc/"):
            return True
        real = os.path.realpath(path)  # also where the worker could have made links
        return (
            f"{real}/".startswith((*self._readable, *self._writable)) or _descriptor(real) or not os.path.exists(real)
        )

    def may_write(self, path: str) -> bool:
        real = os.path.realpath(path)
        return f"{real}/".startswith(self._writable) or _descriptor(real)


def access_of(job: Mapping[str, Any], *, folder: str | None, driver: bool, readable: Sequence[str] = ()) -> Access:
    """What a worker of ``job`` may touch. ``folder`` is its own, for temporary files; ``readable`` comes on top.

    ``driver``: what the driver of a GPU needs as well, see `replay.isolate.driver`.
    """
    target = str(job.get("target", "inference"))
    dumps = [job[name] for name in ("dump", "signature") if isinstance(job.get(name), str)]
    dumps += [path for name in ("dumps", "paths", "app_path") for path in _texts(job.get(name))]
    read: list[Path] = [Path(path) for path in (*_SYSTEM, *_PROCESS, *_SETTINGS, *_python(), *readable, *dumps)]
    write = [] if folder is None else [Path(folder)]
    if (target == "inference" or target.startswith("endpoint=")) and "paths" not in job:
        read += _weights(job, readable)
        write += _notes()
    devices = [Path(path) for path in _DEVICES]
    if driver:
        read += [Path(path) for path in _GPU_READ]
        devices += [path for pattern in _GPU_DEVICES for path in Path("/dev").glob(pattern)]
    return Access(read=_real(read), write=_real(write), devices=_real(devices))


def _python() -> list[str]:
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    return [path for path in (*prefixes, *sys.path, *libraries) if path]


def _weights(job: Mapping[str, Any], readable: Sequence[str]) -> list[Path]:
    """Where weights are looked for, see `replay.models.locate`."""
    from replay.models.cache import cache_root
    from replay.models.locate import huggingface_hub_folder

    dumps = [job["dump"]] if isinstance(job.get("dump"), str) else _texts(job.get("dumps"))
    folders = [Path(path).parent / "model" for path in dict.fromkeys(dumps)]
    folders += [Path(path) / "model" for path in readable]
    if isinstance(job.get("model"), str):
        folders.append(Path(job["model"]))
    linked: list[Path] = []
    for folder in folders:
        with contextlib.suppress(OSError):
            linked += [path for path, _ in zip(folder.iterdir(), range(_MAX_LINKS), strict=False) if path.is_symlink()]
    return [cache_root(), huggingface_hub_folder(), *folders, *linked]


def _notes() -> list[Path]:
    """The notes on weights that were hashed: without them every replay would hash the weights again."""
    from replay.models.cache import fingerprints_folder, make_private

    with contextlib.suppress(OSError):
        make_private(fingerprints_folder())
    return [fingerprints_folder()]


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def _real(paths: Iterable[Path]) -> tuple[str, ...]:
    """Those that exist, with links followed; the root of all files is never meant."""
    found = dict.fromkeys(os.path.realpath(path) for path in paths if path.is_absolute())
    return tuple(path for path in found if path != "/" and os.path.exists(path))


def _descriptor(path: str) -> bool:
    """Whether it is what /dev/stderr and its like resolve to, for something without a file: open already."""
    found = _DESCRIPTOR.match(path)
    return found is not None and int(found[1]) == os.getpid()


def of_another_process(path: str) -> bool:
    """Whether it lies in the folder that the system shows of a process other than this one, links followed."""
    found = _OF_A_PROCESS.match(os.path.realpath(path))
    return found is not None and int(found[1]) != os.getpid()
