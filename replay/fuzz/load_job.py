"""The job function of an example of target load: reads a file that was changed, writes it again, and salvages it."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.validate import validate
from replay.fuzz.changed_file import changed
from replay.fuzz.violation import Violation
from replay.isolate.worker import Emit

LOAD_FUNCTION = f"{__name__}:run"
AGAIN = "again.pplx"


@dataclass(frozen=True, slots=True)
class Content:
    """All that a reader gives. Sections are listed by kind, part for part as they are decoded."""

    state: pb.RuntimeState
    sections: tuple[SectionData, ...]

    @classmethod
    def read(cls, path: Path, *, salvage: bool = False) -> Content:
        """Raises what the reader raises."""
        with open_dump(path, salvage=salvage) as dump:
            state = pb.RuntimeState()
            state.CopyFrom(dump.state)
            kinds = dict.fromkeys(one.kind for one in dump.sections)
            return cls(state, tuple(_section(dump, kind) for kind in kinds))


def _section(dump: Any, kind: str) -> SectionData:
    first = dump.parts(kind)[0]
    shape = tuple(dump.tensor(kind).shape) if first.dtype else ()
    return SectionData(kind=kind, data=dump.read_section(kind), dtype=first.dtype, shape=shape)


_originals: dict[str, tuple[bytes, Content]] = {}


def run(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Read what becomes of ``job["dump"]`` by a change (see `changed`), or write ``job["state"]`` and read that."""
    emit({"event": "step-started"})
    if job["dump"] not in _originals:
        path = Path(job["dump"])
        _originals[job["dump"]] = path.read_bytes(), Content.read(path)
    data, original = _originals[job["dump"]]
    with tempfile.TemporaryDirectory(prefix="pplx-fuzz-") as folder:
        path = Path(folder) / "changed.pplx"
        if job["kind"] == "near":
            state = pb.RuntimeState.FromString(base64.b64decode(job["state"]))
            broken = list(_written(Content(state, ()), path))
        else:
            broken = []
            for draws in job["draws"]:
                path.write_bytes(changed(data, job["kind"], draws))
                broken += _read(path, original, damaged=job["kind"] == "damaged")
                path.with_name(AGAIN).unlink(missing_ok=True)
    return {"failures": [], "violations": [one.to_json() for one in broken]}


def _read(path: Path, original: Content, *, damaged: bool) -> Iterator[Violation]:
    try:
        content = Content.read(path)
    except DumpError as error:
        if not (error.message and error.remedy):
            yield Violation(rule="reader", message=f"{type(error).__name__} does not say what is wrong, or what to do")
    except Exception as error:
        yield Violation(rule="reader", message=f"{type(error).__name__} left the reader: {error}")
        return
    else:
        if damaged and content != original:
            yield Violation(rule="reader", message="a damaged file was read as another state, with no error")
        yield from _validated(content.state)
        yield from _written(content, path.with_name(AGAIN))
    if damaged:
        yield from _salvaged(path, original)


def _validated(state: pb.RuntimeState) -> Iterator[Violation]:
    try:
        validate(state)
    except Exception as error:
        yield Violation(rule="reader", message=f"{type(error).__name__} left the validation: {error}")


def _written(content: Content, path: Path) -> Iterator[Violation]:
    try:
        write_dump(path, content.state, content.sections)
        again = Content.read(path)
    except Exception as error:
        yield Violation(rule="round-trip", message=f"{type(error).__name__}: {error}")
        return
    if again != content:
        yield Violation(rule="round-trip", message="what is read again is another state")


def _salvaged(path: Path, original: Content) -> Iterator[Violation]:
    try:
        part = Content.read(path, salvage=True)
    except DumpError:
        return
    except Exception as error:
        yield Violation(rule="salvage", message=f"{type(error).__name__} left the reader: {error}")
        return
    for field, value in part.state.ListFields():
        whole = getattr(original.state, field.name)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            whole = whole[: len(value)]
        if value != whole:
            yield Violation(
                rule="salvage", message=f"{field.name} of the salvaged state is no part of what was written"
            )
    known = {one.kind: bytes(one.data) for one in original.sections}
    for one in part.sections:
        if not known.get(one.kind, b"").startswith(bytes(one.data)):
            yield Violation(rule="salvage", message=f"the salvaged section {one.kind} is another one")
