"""Whether a job may run on a GPU, and what its worker must then be allowed: what CUDA's driver does when it starts.

Written from what others found out about the driver (it binds and listens on an abstract Unix socket named cuda-uvmfd,
makes memfds and threads, writes thread names, and talks to /dev/nvidia* by ioctl); not run on a GPU. Of these, binding
and listening is all that the filter of a replay would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEVICE_NODES = ("/dev/nvidiactl", "/dev/dxg")
"""Of NVIDIA's driver on Linux, and under the Windows subsystem for Linux. The driver cannot make its nodes from inside
a replay: it would start a program for that."""

ALLOWED = "the GPU driver may bind and listen on Unix sockets, but not accept; no internet socket can be made"


def may_use_gpu(job: Mapping[str, Any], nodes: tuple[str, ...] = DEVICE_NODES) -> bool:
    """Whether a replay's job asks for CUDA, or leaves the device open on a machine that has one of ``nodes``."""
    if not ("dump" in job or "dumps" in job) or job.get("target", "inference") != "inference":
        return False
    device = job.get("device", "auto")
    return device == "cuda" or (device == "auto" and any(Path(node).exists() for node in nodes))
