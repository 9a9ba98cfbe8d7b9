"""``pplx-state verify``: are the bytes of a dump those that were written, and does its state contradict itself?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump, open_dump
from dumps.text import printable
from dumps.validate import MAX_FINDINGS, Finding, validate
from replay.cli.console import command, json_option, print_json, stdout
from replay.cli.failures import EXIT_BAD_DUMP

STYLES = {"error": "bold red", "warning": "yellow"}


@command()
@click.argument("path", metavar="DUMP", type=click.Path(path_type=Path))
@json_option
def verify(path: Path, as_json: bool) -> None:
    """Check every seal of a dump, decode its sections, and look for contradictions in its state.

    Exits with 0 when nothing is wrong (warnings may be shown), and with 4 for bytes that are not what was sealed, or
    for a state that a correct recorder cannot have written.

    \b
    Examples:
      pplx-state verify crash.pplx
      pplx-state verify crash.pplx --json
    """
    with open_dump(path) as opened:
        opened.verify()
        opened.check_sections()
        findings = validate(opened.state)
        errors = sum(finding.severity == "error" for finding in findings)
        if as_json:
            print_json(_document(opened, findings, errors))
        else:
            _print(opened, findings, errors)
    if errors:
        raise SystemExit(EXIT_BAD_DUMP)


def _document(opened: Dump, findings: list[Finding], errors: int) -> dict[str, object]:
    return {
        "dump": {"path": str(opened.path), "id": opened.state.manifest.id, "sha256": opened.sha256},
        "checked": {"seals": len(opened.seals), "bytes": opened.size, "sections": len(opened.sections)},
        "valid": not errors,
        "findings": [asdict(finding) for finding in findings],
    }


def _looked_at(state: pb.RuntimeState) -> str:
    if state.HasField("program"):
        calls = f"{len(state.exchanges)} exchanges, {len(state.tool_calls)} tool calls"
        return f"{calls}, {len(state.syscalls)} file operations"
    return f"{len(state.requests)} requests, {len(state.steps)} steps, {state.kv.num_blocks} KV blocks"


def _print(opened: Dump, findings: list[Finding], errors: int) -> None:
    console = stdout()
    state = opened.state
    parts = f"its {len(opened.sections)} section parts decode" if opened.sections else "it has no sections"
    checked = f"{len(opened.seals)} seals hold all {opened.size:,} bytes; {parts}."
    console.print(Text.assemble(("intact  ", "bold green"), checked))
    looked_at = _looked_at(state)
    if not findings:
        console.print(Text.assemble(("valid   ", "bold green"), f"no contradiction in {looked_at}."))
        return
    for finding in findings:
        line = Text(f"{finding.severity:<8}", STYLES[finding.severity])
        line.append(f"{finding.rule}  ", "default")
        line.append(f"{printable(finding.path, 120)}: {printable(finding.message, 400)}", "default")
        console.print(line)
    more = " (there may be more)" if len(findings) == MAX_FINDINGS else ""
    console.print(Text(f"{errors} errors and {len(findings) - errors} warnings in {looked_at}{more}.", "bold"))
