"""Fast-forwards within a replay: the engine's, with the replay's progress, budget and comparison."""

from __future__ import annotations

from collections.abc import Sequence

from replay.engine.fast_forward import fast_forward
from replay.engine.recorded import RecordedStep
from replay.engine.request import Request
from replay.engine.runner import ModelRunner
from replay.targets.compare import Comparison
from replay.targets.drive import Deadline, Emit


class Forward:
    """Computes known tokens. ``done`` of ``total`` tokens is the progress; with ``check`` answers are drawn again."""

    def __init__(self, comparison: Comparison, *, deadline: Deadline, emit: Emit, check: bool) -> None:
        self.done = self.total = 0
        self._comparison = comparison
        self._deadline = deadline
        self._emit = emit
        self._check = check

    def run(
        self,
        runner: ModelRunner,
        request: Request,
        upto: int,
        written_by: list[int] | None = None,
        *,
        start: int = 0,
        check: bool = True,
    ) -> None:
        """Compute keys and values of the request's tokens from `start` up to `upto`. Raises `BudgetSpent`.

        Without ``check`` its answer is not drawn again.
        """

        def progress(done: int, _: int) -> None:
            self._deadline.check(f"token {done} of request {request.id} in the fast-forward")
            self._emit({"event": "progress", "stage": "fast-forward", "done": self.done + done, "total": self.total})

        check_from = request.num_prompt if self._check and check else None
        checks = fast_forward(
            runner,
            request,
            upto,
            check_from=check_from,
            digest_at=self._comparison.digests_wanted(request, last=min(upto, request.num_tokens - 1)),
            on_progress=progress,
            start=start,
            written_by=written_by,
        )
        self.done += upto - start
        self._comparison.checks(request, checks)


def written_by(steps: Sequence[RecordedStep], request: Request, *, before: int) -> list[int]:
    """For each position the recorded step that wrote it last, so that a later finding can name it; -1 if unknown."""
    writers = [-1] * request.num_tokens
    for step in steps:
        if step.index >= before:
            break
        for chunk in step.chunks:
            if chunk.request is request:
                stop = min(chunk.start + chunk.num_tokens, len(writers))
                writers[chunk.start : stop] = [step.index] * (stop - chunk.start)
    return writers
