"""Stop strings: where a text ends, and which part of it may be shown before that is known.

The engine's thread asks `StopStrings` after each token; the client's text goes through a `TextStream`. Both run the
same code over the same tokens, so the engine stops at the token at which the text is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from replay.engine.detokenize import Vocabulary
from replay.engine.request import FinishCause, Request


class StopMatcher:
    """Cuts a text that comes in pieces before the first stop string. Sans-I/O: pieces in, showable text out."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str:
        """The text that may be shown now. What could still become a stop string is held back."""
        if self.matched:
            return ""
        held = self._held + text
        found = [place for place in (held.find(s) for s in self._stop) if place >= 0]
        if found:
            self.matched, self._held = True, ""
            return held[: min(found)]
        keep = self._open_suffix(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """The held back text, when nothing more comes."""
        held, self._held = self._held, ""
        return held

    def _open_suffix(self, text: str) -> int:
        """Length of the longest end of ``text`` that a stop string begins with."""
        longest = max((len(s) for s in self._stop), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-size:]) for s in self._stop):
                return size
        return 0


class TextStream:
    """One sequence's text as a client sees it: decoded, cut before a stop string, characters whole.

    Text of the first ``min_tokens - 1`` tokens cannot be part of a stop string, since the request may not end there.
    """

    def __init__(self, vocabulary: Vocabulary, *, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer = vocabulary.detokenizer()
        self._matcher = StopMatcher(stop)
        self._min_tokens = min_tokens
        self._count = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was complete at the token pushed last, or before."""
        return self._matcher.matched

    def push(self, token: int) -> str:
        self._count += 1
        text = self._detokenizer.push(token)
        return text if self._count < self._min_tokens else self._matcher.push(text)

    def finish(self) -> str:
        """The rest. An incomplete last character becomes U+FFFD, and that never completes a stop string."""
        if self.stopped:
            return ""
        return self._matcher.finish() + self._detokenizer.finish()


class StopStrings:
    """The engine's `StopCheck`. A request may come with output already (after a fast-forward): it is read up first."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._streams: dict[Request, tuple[TextStream, int]] = {}

    def __call__(self, request: Request) -> FinishCause | None:
        sampling = request.sampling
        if not sampling.stop:
            return None
        stream, seen = self._streams.get(request) or (self._new_stream(request), 0)
        for token in request.tokens[request.num_prompt + seen :]:
            stream.push(token)
        self._streams[request] = (stream, request.num_output)
        if not stream.stopped:
            return None
        self.forget(request)
        return FinishCause.STOP_STRING

    def forget(self, request: Request) -> None:
        """Drop what is kept for a request that ended in another way."""
        self._streams.pop(request, None)

    def _new_stream(self, request: Request) -> TextStream:
        sampling = request.sampling
        return TextStream(self._vocabulary, stop=sampling.stop, min_tokens=sampling.min_tokens)
