"""Where a process stood, read from what faulthandler wrote."""

from __future__ import annotations

import asyncio

from replay.isolate.stacks import first_app_place


def test_the_programs_own_innermost_frame_of_the_main_thread():
    text = f"""some words of its own
where it stood:
Thread 0x1 (most recent call first):
  File "{__file__}", line 7 in another
Current thread 0x2 (most recent call first):
  File "{asyncio.__file__}", line 3 in run
  File "{__file__}", line 4 in main
  File "{__file__}", line 9 in <module>"""
    assert first_app_place(text) == "test_stacks.py:4 main"
    assert first_app_place(text.partition("Current")[0]) == "test_stacks.py:7 another"
    assert first_app_place("") == first_app_place(f'  File "{asyncio.__file__}", line 3 in run') == ""
