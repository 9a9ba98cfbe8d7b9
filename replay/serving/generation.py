"""One HTTP request's choices while they are generated: their updates, their text, and how they fail."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from replay.engine.detokenize import Vocabulary
from replay.engine.request import FinishCause, FinishReason, Request
from replay.engine.stop_strings import TextStream
from replay.openai_wire import AnswerShape, ApiError, Choice, Usage
from replay.serving.engine_thread import EngineThread
from replay.serving.jobs import Ended, Job, Update
from replay.serving.requests import Call, Prompt

TIMEOUT_GRACE_S = 5.0
"""How long an engine that is in the middle of a step may take to notice a timeout."""


class GenerationFailed(ApiError):
    """A choice ended without an answer."""

    def __init__(self, status: int, message: str, *, code: str, dump_id: str | None) -> None:
        super().__init__(status, message, code=code, kind="server_error")
        self.dump_id = dump_id


class EngineStuck(GenerationFailed):
    """The deadline has passed and the engine's thread does not even answer."""

    def __init__(self) -> None:
        super().__init__(504, "The engine does not answer.", code="timeout", dump_id=None)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one update adds to the answer of ``choice``. ``finish_reason`` comes with the last one."""

    choice: int
    text: str
    finish_reason: str | None
    token_ids: tuple[int, ...]

    def chunk(self, call: Call, shape: AnswerShape) -> dict[str, Any] | None:
        """The stream chunk that tells it; None where there is nothing to tell."""
        ids = self.token_ids if call.return_token_ids else None
        if not (self.text or self.finish_reason or ids):
            return None
        return shape.text_chunk(self.choice, self.text, self.finish_reason, token_ids=ids)


@dataclass(slots=True)
class Answer:
    """One choice's text as it grows."""

    stream: TextStream
    pieces: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, update: Update) -> Piece:
        """What an update adds for the client. The token that ended the answer by its id is not part of its text."""
        end, text = update.ended, ""
        if update.token is not None:
            self.tokens.append(update.token)
            if end is None or end.cause not in (FinishCause.EOS, FinishCause.STOP_TOKEN):
                text = self.stream.push(update.token)
        if end is not None:
            text += self.stream.finish()
            self.finish_reason = end.reason.value
        self.pieces.append(text)
        return Piece(update.choice, text, self.finish_reason, () if update.token is None else (update.token,))

    def whole(self, index: int, *, token_ids: bool) -> Choice:
        """The finished answer."""
        text, tokens = "".join(self.pieces), self.tokens if token_ids else None
        return Choice(index=index, text=text, finish_reason=self.finish_reason or "", token_ids=tokens)


class Generation:
    """The jobs of one HTTP request. Use it as a context manager: whatever is unfinished at its end is aborted."""

    def __init__(
        self, call: Call, prompts: Sequence[Prompt], *, engine: EngineThread, vocabulary: Vocabulary, timeout_s: float
    ) -> None:
        self.call = call
        self.id = ("chatcmpl-" if call.chat else "cmpl-") + uuid.uuid4().hex
        self.dump_id: str | None = None
        self._engine = engine
        self._timeout_s = timeout_s
        self._sink: asyncio.Queue[Update] = asyncio.Queue()
        self._jobs = [
            self._job(prompt, choice=number * call.n + sample, sample=sample)
            for number, prompt in enumerate(prompts)
            for sample in range(call.n)
        ]
        self._open = {job.choice: job for job in self._jobs}
        sampling = call.sampling
        self.answers = [
            Answer(TextStream(vocabulary, stop=sampling.stop, min_tokens=sampling.min_tokens)) for _ in self._jobs
        ]
        self._prompt_tokens = sum(len(prompt.tokens) for prompt in prompts)

    def _job(self, prompt: Prompt, *, choice: int, sample: int) -> Job:
        request = Request(
            id=f"{self.id}-{choice}",
            tokens=list(prompt.tokens),
            num_prompt=len(prompt.tokens),
            sampling=self.call.sampling,
            sample_index=sample,
            flags=self.call.flags,
        )
        return Job(
            request=request,
            choice=choice,
            sink=self._sink,
            endpoint=self.call.endpoint,
            stream=self.call.stream,
            arrival_ns=time.monotonic_ns(),
            prompt_text=prompt.text,
        )

    def __enter__(self) -> Generation:
        self._engine.submit(self._jobs)
        return self

    def __exit__(self, *error: object) -> None:
        if self._open:
            self._engine.abort(list(self._open.values()), FinishCause.CLIENT_GONE)

    async def updates(self) -> AsyncIterator[Piece]:
        """The pieces of all answers as they come, until every choice has ended.

        Raises:
            GenerationFailed: one choice failed; the others are aborted on leaving.
        """
        deadline = time.monotonic() + self._timeout_s
        overdue = False
        while self._open:
            wait = deadline - time.monotonic() if not overdue else TIMEOUT_GRACE_S
            try:
                update = await asyncio.wait_for(self._sink.get(), max(wait, 0.001))
            except TimeoutError:
                if overdue:
                    raise EngineStuck from None
                overdue = True
                self._engine.abort(list(self._open.values()), FinishCause.TIMEOUT)
                continue
            if update.ended is not None:
                self._close(update.choice, update.ended)
            answer = self.answers[update.choice]
            yield answer.take(update)

    def _close(self, choice: int, end: Ended) -> None:
        del self._open[choice]
        self.dump_id = end.dump_id or self.dump_id
        if end.reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise GenerationFailed(end.status, end.message, code=end.cause.value, dump_id=end.dump_id)

    @property
    def usage(self) -> Usage:
        completion = sum(len(answer.tokens) for answer in self.answers)
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=completion)

    def choices(self) -> list[Choice]:
        """The finished answers."""
        token_ids = self.call.return_token_ids
        return [answer.whole(index, token_ids=token_ids) for index, answer in enumerate(self.answers)]
