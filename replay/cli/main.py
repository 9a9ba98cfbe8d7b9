"""The entry points. Ctrl-C while their modules are still being imported ends them as quietly as it does later.

That is why nothing is imported up here: the table of commands is in `replay.cli.groups`.
"""

from __future__ import annotations

import sys


def pplx() -> None:
    """Entry point of ``pplx``."""
    _run("pplx")


def replay() -> None:
    """Entry point of ``pplx-replay``."""
    _run("replay")


def state() -> None:
    """Entry point of ``pplx-state``."""
    _run("state")


def server() -> None:
    """Entry point of ``pplx-server``."""
    _run("server")


def sanity_check() -> None:
    """Entry point of ``pplx-state-sanity-check``."""
    _run("sanity_check")


def _run(name: str) -> None:
    try:
        from replay.cli import groups

        getattr(groups, name)()
    except KeyboardInterrupt:
        # Before there is a command that reports it, in the words and with the code of `replay.cli.failures`.
        error = '{"error": {"class": "Interrupted", "message": "interrupted", "remedy": "", "exit_code": 130}}'
        stream, text = (sys.stdout, error) if "--json" in sys.argv else (sys.stderr, "interrupted")
        if stream:  # None where it was closed before the start
            stream.write(f"{text}\n")
        raise SystemExit(130) from None
