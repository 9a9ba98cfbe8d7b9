"""The real clock in tests on virtual time, and where the virtual one starts."""

from __future__ import annotations

from replay.runtime.clock import NS, real_monotonic, real_sleep


class Real:
    """Names that no clock replaces, since they are no module's globals."""

    monotonic = staticmethod(real_monotonic)
    sleep = staticmethod(real_sleep)


STARTED = 1_234_567_890_123_456
WALL = 1_700_000_000 * NS
