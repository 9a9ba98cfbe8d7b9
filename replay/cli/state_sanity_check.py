"""``pplx-state-sanity-check``: a static check of the state that Python modules hand to the recorder. For pre-commit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from dumps.text import printable
from replay.cli.console import command, json_option, note, print_json, stdout
from replay.errors import UsageError
from replay.hooks.state_keys import MAX_DEPTH, StateKeys

NAMED = (b"dumps.record", b".payload")  # a module without either can neither declare nor use a key
NOT_SOURCES = frozenset({"node_modules", "__pycache__", "site-packages"})


@command("pplx-state-sanity-check")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--max-depth",
    type=click.IntRange(min=1),
    default=MAX_DEPTH,
    show_default=True,
    help="How deep dictionaries and lists may lie in each other; 1 is a flat payload.",
)
@click.option(
    "--strict-typing",
    is_flag=True,
    help="Also: one JSON type for a key wherever it is declared, and frame kinds that are literal.",
)
@json_option
def sanity_check(paths: tuple[Path, ...], max_depth: int, strict_typing: bool, as_json: bool) -> int:
    """Check the keys of the state that Python modules at PATHS (the current folder, if none) hand to the recorder.

    State is what a dump keeps of a program as JSON: payloads of `dumps.record.seams.context.frame`, arguments of
    `rec.call` and `rec.note_entry`. Keys must be literal strings, each once, and values such that JSON can hold them;
    what is asked of a recorded payload must be declared somewhere. Nothing is imported or run.

    \b
    Exit codes: 0 nothing found, 1 something found, 2 usage.

    \b
    Examples:
      pplx-state-sanity-check --max-depth=3 --strict-typing
      pplx-state-sanity-check src agent.py --json
    """
    check = StateKeys(max_depth=max_depth, strict_typing=strict_typing)
    for path in _modules(paths or (Path(),)):
        content = path.read_bytes()
        if any(name in content for name in NAMED):
            check.read(path, content)
    found = check.findings()
    if as_json:
        findings = [asdict(finding) | {"path": str(finding.path)} for finding in found]
        print_json({"modules": check.modules, "keys": len(check.declared), "findings": findings})
    else:
        for finding in found:
            stdout().print(printable(str(finding), 1000))
        counts = [(len(found), "finding"), (len(check.declared), "key"), (check.modules, "module")]
        told, keys, modules = (f"{number} {name}{'s' * (number != 1)}" for number, name in counts)
        note(f"{told}; {keys} in {modules} that know the recorder")
    return int(bool(found))


def _modules(paths: tuple[Path, ...]) -> Iterator[Path]:
    """The Python files at ``paths``. Of folders those below them, but no hidden ones and no virtual environments."""
    for path in paths:
        if path.is_file():
            yield path
            continue
        if not path.is_dir():
            raise UsageError(f"{path} is neither a file nor a folder")
        for above, below, names in os.walk(path):
            if "pyvenv.cfg" in names:
                below.clear()
                continue
            below[:] = sorted(name for name in below if not name.startswith(".") and name not in NOT_SOURCES)
            yield from (Path(above, name) for name in sorted(names) if name.endswith(".py"))
