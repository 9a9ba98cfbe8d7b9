"""What the guard refused a program while it was still itself: from there on it may go its own way."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dumps.record.seams.unplayable import is_probe


class Cuts:
    """Hears of refusals. ``first`` is the first one that counts, empty where there was none.

    Libraries that ask the system who it is do without an answer, and so does the recorded world: what they would have
    said is no request's address or body.

    ``itself`` says whether the program is: what it does after an error of ours is no cut any more.
    """

    def __init__(self, itself: Callable[[], bool]) -> None:
        self._itself = itself
        self.first = ""

    def __call__(self, attempt: str) -> None:
        """Called by the audit hook, in the thread that is refused."""
        if not self.first and self._itself() and not is_probe(sys._getframe(1)):
            self.first = attempt
