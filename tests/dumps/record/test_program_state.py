"""What a dump says of the moment it is made in."""

from __future__ import annotations

import asyncio
from typing import Any

from dumps.record.program_state import Trouble
from dumps.schema import state_pb2 as pb

LIBRARY = """
import asyncio

async def serve(made_of, found):
    found.append(made_of(reason="exception", invariant="client-gone", task=asyncio.current_task()).failure())
"""


def test_what_runs_the_loop_is_not_where_a_request_failed() -> None:
    """A server's script stands below every task, in the call that serves."""
    library: dict[str, Any] = {}
    exec(compile(LIBRARY, "<library>", "exec"), library)
    found: list[pb.Failure] = []
    asyncio.run(library["serve"](Trouble, found))
    assert [failure.frame for failure in found] == [""]


async def test_what_runs_in_a_task_is() -> None:
    task = asyncio.current_task()
    failure = Trouble(reason="exception", invariant="client-gone", task=task).failure()
    assert failure is not None
    assert failure.frame.endswith("test_program_state.py:test_what_runs_in_a_task_is")
