"""What a failure came from: the same exception at the end of another chain is another failure.

`raise AgentError("failed") from error` and an exception group look the same whatever went wrong beneath them. So what
they came from is compared, too: the members of a group, and of causes and contexts those that passed through the
program's own code. What a library wrapped inside itself is its own affair, and differs below a recorded connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dumps.record.secrets import scrub_text
from dumps.record.stacks import MAX_EXCEPTIONS, capture_exception, top_in_app_frame
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.signature import normalise, of_any_run

MAX_TOLD = 3  # messages that differ

Origin = tuple[str, str, str]
"""Type, frame, and message without what differs between two occurrences."""


def differing_origin(recorded: Sequence[pb.ExceptionInfo], error: BaseException) -> str:
    """How what ``error`` came from differs from the ``recorded`` chain, in one sentence; empty where it does not.

    Both end with the failure itself, which is not compared here.
    """
    replayed = capture_exception(error)
    if MAX_EXCEPTIONS in (len(recorded), len(replayed)):
        return ""  # which of them were left out is chance
    before, now = Counter(_origins(recorded)), Counter(_origins(replayed))
    missing, other = list((before - now).elements()), list((now - before).elements())
    if not missing and not other:
        return ""
    return f"the failure came from {_in_words(other)} in the replay, and from {_in_words(missing)} in the recording"


def differing_messages(recorded: Sequence[pb.ExceptionInfo], error: BaseException) -> list[str]:
    """Where what was raised says something else than the ``recorded`` chain, of one origin, does: numbers that come
    from the recorded world, such as a status. One sentence for each."""
    before, now = (
        [(type_and_frame(one), scrub_text(one.message)) for one in chain if _counts(one, chain)]
        for chain in (list(recorded), capture_exception(error))
    )
    found = []
    for key in dict.fromkeys(key for key, _ in before):
        mine, theirs = ([text for other, text in side if other == key] for side in (before, now))
        left = [text for text in theirs if not _take(mine, text)]
        found += [
            f"the message differs: recorded (dump) {printable(old)!r}, replayed (your code) {printable(new)!r}"
            for old, new in zip(mine, left, strict=False)
        ]
    return found[:MAX_TOLD]


def _take(texts: list[str], wanted: str) -> bool:
    """Take the one of ``texts`` that says what ``wanted`` says."""
    at = next((at for at, text in enumerate(texts) if of_any_run(text) == of_any_run(wanted)), None)
    if at is not None:
        del texts[at]
    return at is not None


def type_and_frame(one: pb.ExceptionInfo) -> tuple[str, str]:
    return one.type, top_in_app_frame(one) or ""


def _counts(one: pb.ExceptionInfo, chain: Sequence[pb.ExceptionInfo]) -> bool:
    return one is chain[-1] or one.link == "member" or top_in_app_frame(one) is not None


def _origins(chain: Sequence[pb.ExceptionInfo]) -> list[Origin]:
    found = ((one, top_in_app_frame(one) or "") for one in chain[:-1])
    return [
        (one.type, frame, normalise(scrub_text(one.message))) for one, frame in found if frame or one.link == "member"
    ]


def _in_words(origins: Sequence[Origin]) -> str:
    shown = [f"{kind}{frame and f' in {frame}'} ({printable(message, 120)!r})" for kind, frame, message in origins[:3]]
    return ", ".join(shown) or "nothing more"
