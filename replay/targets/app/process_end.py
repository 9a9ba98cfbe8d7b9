"""`os._exit` in a replayed program: the process would be gone without a word, so the report is sent first."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from dumps.record.seams.rebind import OURS, StandIn, rebind
from dumps.record.stacks import call_site, first_in_app
from replay.engine.failure import Failure, FailureKind
from replay.targets.app.outcome import Outcome

_exit = os._exit


def on_process_end(told: Callable[[Outcome], None]) -> Callable[[], None]:
    """Call ``told`` with what it comes to when the program ends its process, in the thread that does, then end it.

    Returns the way back. As with `sys.exit`, a status other than 0 is a failure. It is one of a kind of its own: no
    recording makes a dump of it, since it ends that of the process, too.
    """

    def leave(status: int) -> None:
        caller = sys._getframe(1).f_back  # beneath the stand-in
        if caller is not None and str(caller.f_globals.get("__name__")).partition(".")[0] not in OURS:
            try:
                told(_outcome(status))
            except BaseException:  # then the supervisor tells of a death, with this
                traceback.print_exc(file=sys.__stderr__)
        _exit(status)

    return rebind({_exit: StandIn(_exit, leave)})


def _outcome(status: Any) -> Outcome:
    if status == 0:
        return Outcome(ended="exited")
    sites = call_site()
    where = f", in {sites[0].filename}:{sites[0].line} {sites[0].function}" if sites else ""
    return Outcome(
        ended="exited",
        failure=Failure(
            kind=FailureKind.PROCESS_DEATH,
            message=f"the program ended its process by os._exit with status {status}{where}",
            frame=first_in_app(sites),
        ),
    )
