"""The real monotonic clock, for those who record.

Libraries that fake time for tests replace ``time.monotonic_ns`` wherever a module holds the function itself. This is
not the function itself.
"""

from __future__ import annotations

import time

from dumps.record.seams.rebind import StandIn

monotonic_ns = StandIn(time.monotonic_ns, time.monotonic_ns)
