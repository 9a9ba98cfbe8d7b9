"""Redaction: a dump that can be given to others. Runs nothing, and imports neither torch nor the engine."""

from dumps.redact.changes import Change, Kept
from dumps.redact.claims import Claim
from dumps.redact.redact import Redacted, redact
from dumps.redact.write import redact_dump, write_redacted

__all__ = ["Change", "Claim", "Kept", "Redacted", "redact", "redact_dump", "write_redacted"]
