"""``python -m replay.cli``: the same as the ``pplx`` command."""

from __future__ import annotations

from replay.cli.main import pplx

if __name__ == "__main__":
    pplx()
