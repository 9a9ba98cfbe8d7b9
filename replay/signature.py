"""Failure signatures: what makes two failures the same one.

A signature has an identity, which decides, and a location, which is compared only between a dump and its own
unmodified replay. The identity holds nothing that changes from run to run: numbers, ids and addresses in a message
are replaced, and evidence such as byte counts stays out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dumps.errors import InvalidState
from dumps.schema import state_pb2 as pb
from replay.engine.failure import Failure
from replay.errors import UsageError

_VOLATILE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "<addr>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b(?:cmpl|chatcmpl|req|request)[-_][\w-]+"), "<id>"),
    (re.compile(r"(?<=request )\S+"), "<id>"),
    (re.compile(r"\d+\.\d+"), "<n>"),  # before ids: many digits after the point are none
    (re.compile(r"\b[0-9a-f]{12,}\b"), "<id>"),
    (re.compile(r"\d+(\.\d+)?"), "<n>"),
)


def normalise(message: str) -> str:
    """A message without what differs between two occurrences of one failure."""
    for pattern, name in _VOLATILE:
        message = pattern.sub(name, message)
    return " ".join(message.split())


_OF_ONE_RUN = (
    (re.compile(r"0x[0-9a-fA-F]+"), "<addr>"),
    (re.compile(r"\b1[34]\d{13}\b"), "<addr>"),  # what id() gives
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?"), "<time>"),
    (re.compile(r"\b1[5-9]\d{8}(\d{3}|\d{6}|\d{9})?(\.\d+)?\b"), "<time>"),
    (re.compile(r"(?<=[/\\])tmp[a-z0-9_]{8}"), "<temp>"),
    (re.compile(r"\b(Task|Thread|Dummy|ThreadPoolExecutor)-\d+(_\d+)?"), r"\1-<n>"),
    (re.compile(r"(?<=\bline )\d+|(?<=\bpid )\d+|(?<=\bpid=)\d+"), "<n>"),
    (re.compile(r"\d+(\.\d+)?(e-\d+)?(?=\s?(ns|us|µs|ms|s|secs?|seconds?|min|minutes?)\b)"), "<n>"),
    (re.compile(r"\d+\.\d{3,}|\d+(\.\d+)?e-\d+"), "<n>"),
)
"""What may differ though a program is unchanged and its world recorded: addresses, times and what took how long."""


def of_any_run(message: str) -> str:
    """A message of a program without what its recorded world does not hold still. Other numbers stay: a status, an id,
    an amount come from that world."""
    for pattern, name in _OF_ONE_RUN:
        message = pattern.sub(name, message)
    return " ".join(message.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Equal identities are the same failure. ``frame``, the innermost in-app one, belongs to it where it is known:
    in a program, but not in an engine, whose frames are its own affair."""

    kind: str
    invariant: str = ""
    exception_type: str = ""
    message: str = ""
    frame: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where the failure showed.

    The places of a non-finite value, or of a slot that was not its reader's, are evidence, but on the same dump they
    must agree.
    """

    request_id: str | None = None
    step: int | None = None
    position: int | None = None
    layer: int | None = None
    tensor: str | None = None
    block: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    identity: Identity
    location: Location

    def to_json(self) -> dict[str, Any]:
        identity = asdict(self.identity)
        if not self.identity.frame:  # an engine's failure has none
            del identity["frame"]
        return {"identity": identity, "location": asdict(self.location)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """Raises `UsageError` when a key is unknown or a value has the wrong type."""
        try:
            identity = {key: _text(key, value) for key, value in dict(data["identity"]).items()}
            location = {key: _place(key, value) for key, value in dict(data.get("location", {})).items()}
            return cls(Identity(**identity), Location(**location))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"not a signature: {error}", remedy='it needs {"identity": {"kind": ...}, "location": {...}}'
            ) from error

    @classmethod
    def of(cls, failure: Failure) -> Signature:
        place, read = failure.non_finite, failure.read
        return cls(
            Identity(
                kind=failure.kind.value,
                invariant=failure.invariant,
                exception_type=failure.exception_type,
                message=normalise(failure.message),
                frame=failure.frame,
            ),
            Location(
                request_id=failure.request_id,
                step=failure.step,
                position=failure.position,
                layer=place.layer if place else None,
                tensor=place.tensor if place else None,
                block=read.block if read else place.block if place else None,
                slot=read.slot if read else place.slot if place else None,
            ),
        )

    @classmethod
    def recorded(cls, failure: pb.Failure, state: pb.RuntimeState) -> Signature:
        """The signature of a failure that stands in a dump. Raises `InvalidState` when it names no request of it."""

        def known(message: Any, field: str) -> Any:
            return getattr(message, field) if message.HasField(field) else None

        place = failure.non_finite if failure.HasField("non_finite") else None
        read = failure.read if failure.HasField("read") else None
        request = known(failure, "request")
        if request is not None and request >= len(state.requests):
            raise InvalidState(
                f"a failure names request {request}, the dump has {len(state.requests)}",
                remedy="pplx-state verify names each contradiction",
            )
        return cls(
            Identity(
                kind=failure.kind,
                invariant=failure.invariant,
                exception_type=failure.exception_type,
                message=normalise(failure.message),
                frame=failure.frame,
            ),
            Location(
                request_id=state.requests[request].id if request is not None else None,
                step=known(failure, "step"),
                position=known(failure, "position"),
                layer=known(place, "layer") if place else None,
                tensor=(place.tensor or None) if place else None,
                block=read.block if read else known(place, "block") if place else None,
                slot=read.slot if read else known(place, "slot") if place else None,
            ),
        )


def compare(expected: Signature, seen: Signature, *, location: bool) -> dict[str, bool]:
    """Field by field, whether the two agree. Location fields that the expected signature does not know are left out."""
    ours, theirs = asdict(expected.identity), asdict(seen.identity)
    if not ours["frame"]:
        del ours["frame"]
    match = {f"identity.{key}": theirs[key] == value for key, value in ours.items()}
    if location:
        place = asdict(seen.location)
        match |= {
            f"location.{key}": place[key] == value
            for key, value in asdict(expected.location).items()
            if value is not None
        }
    return match


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"identity.{key} must be a string")
    return value


def _place(key: str, value: object) -> Any:
    wanted = str if key in ("request_id", "tensor") else int
    if value is not None and type(value) is not wanted:
        raise TypeError(f"location.{key} must be {'a string' if wanted is str else 'an integer'}")
    return value
