"""Which failure a replay looks for."""

from __future__ import annotations

from pathlib import Path

from dumps.errors import DumpError
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from replay import strict_json
from replay.errors import UsageError
from replay.signature import Signature


def expected_signature(state: pb.RuntimeState, named: str | None) -> Signature | None:
    """The signature that a replay must show: of the file ``named``, else of the dump's last failure.

    Raises `UsageError` for a file that is neither a dump nor a signature in JSON.
    """
    if named is None:
        return own_signature(state)
    path = Path(named)
    try:
        with open_dump(path) as other:
            signature = own_signature(other.state)
            if signature is None:
                raise UsageError(f"{path} records no failure, so it has no signature")
            return signature
    except DumpError as error:
        try:
            document = strict_json.loads(path.read_bytes())
            return Signature.from_json(document.get("signature", document))
        except (OSError, AttributeError, strict_json.InvalidJson):
            raise UsageError(f"--signature {path}: neither a dump ({error}) nor a signature in JSON") from error


def own_signature(state: pb.RuntimeState) -> Signature | None:
    """The signature of the last failure that a dump records."""
    return Signature.recorded(state.failures[-1], state) if state.failures else None
