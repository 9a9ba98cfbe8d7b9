"""How long this process has computed since time moved last, where a program is about to look at a virtual clock."""

from __future__ import annotations

import time

LEAST_NS = 100_000_000
"""Less computing than this is not looked at, and no shorter time is taken to have been spent on it."""
FASTER = 3
"""So many times as fast as the recorded program, on its machine and beside what ran there, it may compute here."""

real_process_time_ns = time.process_time_ns


class Work:
    """Processor time, of whatever thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """What is computed from here on is the program's."""
        self._began_ns, self._seen_ns = real_process_time_ns(), 0

    def is_more(self) -> bool:
        """Whether there is LEAST_NS more than when this was true last: what comes of it takes time to find out."""
        worked_ns = real_process_time_ns() - self._began_ns
        if worked_ns - self._seen_ns < LEAST_NS:
            return False
        self._seen_ns = worked_ns
        return True

    def took(self, ns: int) -> bool:
        """Whether a recorded time that long went by with this computing, and with little else."""
        return LEAST_NS < ns < self._seen_ns * FASTER
