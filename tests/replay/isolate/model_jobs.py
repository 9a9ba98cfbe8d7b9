"""Job functions for the model's worker of a replayed program: each goes wrong in one way."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from replay.isolate.worker import Channel

Job = dict[str, Any]


def echo(job: Job, channel: Channel) -> dict[str, Any]:
    """Answers each request with itself and the number of requests before it."""
    channel({"event": "step-started"})
    answer: dict[str, Any] = {}
    count = 0
    while not (question := channel.ask(answer)).get("end"):
        answer = {"status": 200, "chunks": [str(count)], "question": question, "pid": os.getpid()}
        count += 1
    return {"answered": count}


def dies_at_the_second(job: Job, channel: Channel) -> dict[str, Any]:
    channel({"event": "step-started"})
    channel.ask(channel.ask({}) and {"status": 200, "chunks": ["first"]})
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def hangs(job: Job, channel: Channel) -> dict[str, Any]:
    channel({"event": "step-started"})
    channel.ask({})
    time.sleep(600)
    return {}


def never_loads(job: Job, channel: Channel) -> dict[str, Any]:
    time.sleep(600)
    return {}


def raises(job: Job, channel: Channel) -> dict[str, Any]:
    channel.ask({})
    raise ZeroDivisionError("in the engine")


def gives_up(job: Job, channel: Channel) -> dict[str, Any]:
    channel.ask({})
    return {"answered": 0}
