"""Runs the agent once, recorded: python record.py FOLDER [JUMPED].

With JUMPED (a file's path) the machine's clock is set two hours ahead in the middle of the run, when the services ask
for it. This process's own clock, that is: time-machine stands in for somebody who sets the real one.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import agent
import time_machine

from dumps.record.program import recording

QUESTION = "What should I pack for Lisbon, and what will my money be worth?"
JUMP_S = 7200


def jump_when_asked(jumped: Path) -> None:
    asked = jumped.with_suffix(".asked")
    while not asked.exists():
        time.sleep(0.005)
    time_machine.travel(time.time() + JUMP_S, tick=True).start()
    jumped.touch()


def main() -> None:
    folder, *jumped = map(Path, sys.argv[1:])
    with recording(folder, level="full", exclude_files=["jumped*"]) as rec:
        if jumped:
            threading.Thread(target=jump_when_asked, args=(jumped[0],), daemon=True).start()
        rec.call(agent.answer, question=QUESTION)


if __name__ == "__main__":
    main()
