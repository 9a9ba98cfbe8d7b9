"""Find weights on this machine by name or by fingerprint. Nothing is fetched, and nothing is loaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from replay.errors import ModelUnavailable, Refused, ReplayError, UnsupportedModel
from replay.models import cache, catalog
from replay.models.convert import OnStage
from replay.models.fingerprint import examine
from replay.models.folder import is_model_folder, missing_from
from replay.models.pull import convert_once, installed_gguf, pull

SHORT = 12  # hex digits of a fingerprint that people are shown, and the fewest that name one


BESIDE = "beside the dump"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A folder of weights that was found, the name it goes by, and who keeps it there."""

    name: str
    folder: Path
    kept_by: str


def locate(
    name: str | None = None,
    fingerprint: str | None = None,
    explicit: Path | None = None,
    beside: Sequence[Path] = (),
    *,
    on_progress: OnStage = lambda stage, done, total: None,
) -> Path:
    """The folder of the wanted weights: config.json and safetensors, for `replay.engine.weights.load_model`.

    ``explicit`` is a folder or a .gguf file that a person named; then nothing else is looked at. Otherwise the first
    match of: ``model`` in the folders of ``beside``, our cache, an installed package, the local Hugging Face cache.
    With a ``fingerprint`` (64 hex digits, or the first 12 or more) only weights that have it are returned.

    ``name`` and ``fingerprint`` may come from a dump: they are compared with what is there, never made into a path.
    Raises `ModelUnavailable`: not found, with the places looked at, or found with another fingerprint.
    """
    if fingerprint and not is_fingerprint(fingerprint):
        # A dump could hold anything here, and a short prefix would match weights that it does not mean.
        raise ModelUnavailable(
            f"{fingerprint[:80]!r} is not a fingerprint: it takes {SHORT} to 64 hex digits",
            remedy="Pass the weights with --model PATH.",
        )
    if explicit is not None:
        folder = _explicit(explicit, on_progress)
        if fingerprint:
            _require(Candidate(name=str(explicit), folder=folder, kept_by="you"), fingerprint, on_progress)
        return folder
    others: list[tuple[Candidate, str]] = []
    for candidate in _matching(name, fingerprint, beside, on_progress):
        if not fingerprint:
            return candidate.folder
        try:
            seen = _fingerprint(candidate, on_progress)
        except ReplayError as error:
            # A damaged copy must not hide a good one further down.
            others.append((candidate, f"unreadable ({error})"))
            continue
        if seen.startswith(fingerprint):
            return candidate.folder
        others.append((candidate, seen))
    raise _not_found(
        name,
        fingerprint,
        beside,
        [found for found in others if _is_named(found[0], name) or found[0].kept_by == BESIDE],
    )


def is_fingerprint(text: str) -> bool:
    return SHORT <= len(text) <= 64 and set(text) <= set("0123456789abcdef")


def candidates() -> Iterator[Candidate]:
    """Everything in our cache and in the Hugging Face cache, in that order."""
    for name, folder in cache.all_cached():
        yield Candidate(name=name, folder=folder, kept_by="pplx-replay cache")
    yield from huggingface_candidates()


def huggingface_candidates() -> Iterator[Candidate]:
    """Models of the local Hugging Face cache that have safetensors; of several snapshots the one ``main`` points at
    comes first."""
    hub = huggingface_hub_folder()
    for repository in sorted(hub.glob("models--*")):
        main = _read_line(repository / "refs" / "main")
        snapshots = sorted((repository / "snapshots").glob("*"), key=lambda path: (path.name != main, path.name))
        for snapshot in snapshots:
            if is_model_folder(snapshot):
                name = repository.name.removeprefix("models--").replace("--", "/")
                yield Candidate(name=name, folder=snapshot, kept_by="Hugging Face cache")


def huggingface_hub_folder() -> Path:
    """Where huggingface_hub keeps its cache, by its own variables and without importing it."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub)
    if home := os.environ.get("HF_HOME"):
        return Path(home) / "hub"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "huggingface" / "hub"


def _explicit(path: Path, on_progress: OnStage) -> Path:
    if path.is_file():
        if path.suffix == ".gguf":
            return convert_once(path, on_progress=on_progress)
        raise ModelUnavailable(f"{path} is neither a folder nor a .gguf file", remedy="Pass a folder of safetensors.")
    if missing := missing_from(path):
        raise ModelUnavailable(
            f"{path} is no model folder: missing {' and '.join(missing)}",
            remedy="Pass a folder with config.json and *.safetensors, or a .gguf file.",
        )
    return path


def _matching(
    name: str | None, fingerprint: str | None, beside: Sequence[Path], on_progress: OnStage
) -> Iterator[Candidate]:
    """What to look at, cheapest first: with a fingerprint the named ones first, then all others."""
    for folder in beside:
        # A folder beside the dump was put there for it: it counts as named.
        if is_model_folder(folder / "model"):
            yield Candidate(name=name or "", folder=folder / "model", kept_by=BESIDE)
    found = list(candidates())
    yield from (candidate for candidate in found if _is_named(candidate, name))
    entry = (catalog.by_name(name) if name else None) or (catalog.by_fingerprint(fingerprint) if fingerprint else None)
    if entry is not None and cache.cached(entry.name) is None and installed_gguf(entry) is not None:
        # Where it cannot be converted (a replay starts no processes), the error that follows says how to pull.
        with contextlib.suppress(ModelUnavailable, UnsupportedModel, Refused):
            pull(entry.name, on_progress=on_progress)
        if (converted := cache.cached(entry.name)) is not None:
            yield Candidate(name=entry.name, folder=converted, kept_by="installed package")
    if fingerprint:
        yield from (candidate for candidate in found if not _is_named(candidate, name))


def _is_named(candidate: Candidate, name: str | None) -> bool:
    if not name:
        return False
    wanted, own = name.lower(), candidate.name.lower()
    return wanted == own or wanted == own.rsplit("/", 1)[-1]


def _fingerprint(candidate: Candidate, on_progress: OnStage) -> str:
    stage = f"hashing {candidate.name or candidate.folder}"
    return examine(candidate.folder, on_bytes=lambda done, total: on_progress(stage, done, total)).fingerprint


def _require(candidate: Candidate, fingerprint: str, on_progress: OnStage) -> None:
    seen = _fingerprint(candidate, on_progress)
    if not seen.startswith(fingerprint):
        raise ModelUnavailable(
            f"{candidate.folder} holds other weights: fingerprint {seen[:SHORT]}, wanted {fingerprint[:SHORT]}",
            remedy=_pull_hint(None, fingerprint) or "Pass the weights that the failed process had loaded.",
        )


def _not_found(
    name: str | None, fingerprint: str | None, beside: Sequence[Path], others: list[tuple[Candidate, str]]
) -> ModelUnavailable:
    wanted = " with ".join(filter(None, (name, f"fingerprint {fingerprint[:SHORT]}" if fingerprint else "")))
    hint = _pull_hint(name, fingerprint)
    if others:
        seen = "; ".join(f"{candidate.folder} has {_short(what)}" for candidate, what in others)
        return ModelUnavailable(
            f"weights of {wanted} were found, but not those: {seen}",
            remedy=hint or "Pass the folder of the weights that the failed process had loaded with --model PATH.",
        )
    looked = [str(folder / "model") for folder in beside]
    looked += [str(cache.models_folder()), "installed packages", str(huggingface_hub_folder())]
    return ModelUnavailable(
        f"no weights of {wanted or 'any name'} here; looked in {', '.join(looked)}",
        remedy=hint or "Name their folder (--model PATH), or fetch them into the Hugging Face cache.",
    )


def _pull_hint(name: str | None, fingerprint: str | None) -> str:
    entry = catalog.by_fingerprint(fingerprint) if fingerprint else catalog.by_name(name) if name else None
    return f"Run: {entry.pull_command}" if entry is not None and cache.cached(entry.name) is None else ""


def _short(what: str) -> str:
    return f"fingerprint {what[:SHORT]}" if len(what) == 64 else what


def _read_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline(256).strip()
    except OSError:
        return ""
