"""Waiting for a recorded time."""

from __future__ import annotations

import asyncio


async def until(monotonic_ns: int) -> None:
    """Wait until the running loop's clock shows it; one turn of the loop where that is past."""
    await asyncio.sleep(max(0.0, monotonic_ns / 1e9 - asyncio.get_running_loop().time()))
