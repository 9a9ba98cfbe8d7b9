"""``pplx-state dump``: show what a dump holds, to people or as JSON, and the bytes it stands in."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from google.protobuf.message import Message
from rich.text import Text

from dumps.errors import DumpError, UnknownPath
from dumps.json_form import bytes_to_json, message_to_json
from dumps.limits import Limits
from dumps.paths import look_up, parse
from dumps.schema.mapped import MappedFile
from dumps.schema.raw import RawNode, check_seals, raw_structure
from dumps.schema.reader import Dump, open_dump
from dumps.text import printable
from replay.cli.console import command, json_option, print_json, stdout
from replay.cli.failures import EXIT_BAD_DUMP
from replay.cli.state_view import print_parts, show

MAX_SHOWN = 100_000
MAX_NODES = 20_000  # of --raw without --all: a hostile megabyte can hold half a million


@command()
@click.argument("path", metavar="DUMP", type=click.Path(path_type=Path))
@click.option("--raw", is_flag=True, help="Show the bytes: every field with offset, length, wire type and name.")
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="With --raw: every element of long lists, not the first five, and no limit in total.",
)
@click.option("--field", metavar="PATH", help="Show one value, such as requests[0].sampling.seed.")
@click.option("--salvage", is_flag=True, help="Open a torn or damaged dump as far as its seals hold.")
@json_option
def dump(path: Path, raw: bool, show_all: bool, field: str | None, salvage: bool, as_json: bool) -> None:
    """Show what a dump holds: what failed, requests, last steps, KV cache. Runs nothing.

    \b
    Examples:
      pplx-state dump crash.pplx
      pplx-state dump crash.pplx --field 'failures[-1].message'
      pplx-state dump crash.pplx --json | jq .requests
      pplx-state dump crash.pplx --raw           the v0.9.3 blob, field by field
      pplx-state dump torn.pplx --salvage        what is left of an unfinished one
    """
    if raw and field is not None:
        raise click.UsageError("--raw and --field cannot be combined")
    if raw:
        _show_raw(path, as_json=as_json, most_alike=None if show_all else 5)
        return
    with open_dump(path, salvage=salvage) as opened:
        if field is not None:
            _show_field(opened, field, as_json)
        elif as_json:
            print_json(_document(opened))
        else:
            print_parts(stdout(), show(opened))


def _document(opened: Dump) -> dict[str, Any]:
    """The state, and beside it under ``file`` what is known of the container."""
    document = message_to_json(opened.state)
    document["file"] = {
        "path": str(opened.path),
        "size": opened.size,
        "sha256": opened.sha256,
        "torn": asdict(opened.torn) if opened.torn else None,
        "sections": [asdict(info) for info in opened.sections],
    }
    return document


def _show_field(opened: Dump, field: str, as_json: bool) -> None:
    try:
        value = look_up(opened.state, field)
    except UnknownPath as error:
        raise click.UsageError(f"{error.message}. {error.remedy}") from None
    plain = _plain(opened, field, value)
    if as_json:
        print_json(plain)
    elif isinstance(plain, str):
        stdout().print(Text(printable(plain, MAX_SHOWN)))
    else:
        # ASCII, so that nothing in it can act on a terminal.
        stdout().print(Text(json.dumps(plain, indent=2, default=str)))


def _plain(opened: Dump, field: str, value: Any) -> Any:
    """``value`` as JSON values."""
    if isinstance(value, Message):
        return message_to_json(value)
    if isinstance(value, bytes):
        steps = parse(field)
        parent = look_up(opened.state, field.rpartition(".")[0]) if "." in field else opened.state
        return bytes_to_json(parent.DESCRIPTOR.fields_by_name[str(steps[-1])].full_name, value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return str(value) if isinstance(value, float) and value - value != 0 else value
    return [_plain(opened, field, one) for one in value]


def _show_raw(path: Path, *, as_json: bool, most_alike: int | None) -> None:
    file = MappedFile(path, Limits())
    nodes: list[RawNode] = []
    good = total = 0
    cut = False
    console = stdout()
    try:
        good, total, problem = check_seals(file.view, Limits())
        for count, node in enumerate(raw_structure(file.view, most_alike=most_alike)):
            if most_alike is not None and count == MAX_NODES:
                cut = True
                break
            if as_json:
                nodes.append(node)
            else:
                console.print(_line(node))
    except DumpError as error:
        problem = error
    finally:
        file.close()
    if as_json:
        fault = (
            {"class": type(problem).__name__, "message": str(problem), "offset": problem.offset} if problem else None
        )
        seals = {"total": total, "good": good}
        shown = [asdict(node) for node in nodes]
        print_json({"size": file.size, "nodes": shown, "cut": cut, "seals": seals, "problem": fault})
        if problem:
            raise SystemExit(EXIT_BAD_DUMP)
        return
    if cut:
        console.print(Text(f"... and more after these {MAX_NODES:,} fields; --all shows them"))
    console.print(Text(f"\n{good} of {total} seals hold; the file has {file.size:,} bytes."))
    if problem:
        raise problem


def _line(node: RawNode) -> Text:
    line = Text(f"{node.offset:>10} {node.length:>9}  {'  ' * node.depth}")
    line.append(node.name, "bold" if node.depth == 0 else "")
    if node.number is not None:
        line.append(f" ({node.number})", "dim")
    if node.wire:
        line.append(f" {node.wire}", "cyan")
    if node.value:
        line.append(f"  {node.value}")
    return line
