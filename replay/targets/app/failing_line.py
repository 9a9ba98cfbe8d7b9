"""Whether a program that asks for what nobody recorded has passed the line at which the recorded one failed.

A recorded traceback names functions and lines. A program in the middle of one of those functions may have the failing
line before it still. It has passed it where it stands further down in the same function and that function is unchanged
so far as can be seen: the line of the record still holds the call, or the ``raise``, that the record names there. In a
loop around both lines nothing is passed.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dumps.record.stacks import first_in_app
from dumps.schema import state_pb2 as pb
from replay.targets.app.failing_task import Suspects

_RECORDING = "dumps.record.program"
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, *_COMPREHENSIONS)


class Stand(StrEnum):
    """``AHEAD``: the failing line may still come. ``WAITING``: what was called there goes on elsewhere."""

    ELSEWHERE = "elsewhere"
    AHEAD = "ahead"
    WAITING = "waiting"
    PASSED = "passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One in-app frame of the recorded traceback. ``called`` is the function that it called there, without its class,
    or the exception that it raised."""

    place: str
    line: int
    called: str


def may_still_fail(
    state: pb.RuntimeState,
    frame: str,
    stacks: Iterable[pb.Thread],
    *,
    unchanged: bool,
    foreign: bool,
    tasks: Suspects | None = None,
) -> bool:
    """Whether a program with these ``stacks`` may have the failing line before it.

    ``frame`` is the innermost in-app one of the recorded failure, "file.py:Class.method". ``unchanged``: the program is
    the recorded one. ``foreign``: the failure is not that of ``state``, so that nothing is known of its lines.
    ``tasks``: whose stacks they are, where the names of tasks mean something. One that did not fail then is of no
    account here, and one that waits for the failing one has nothing before it once that is over.
    """
    steps = [] if foreign else _recorded(state, frame)
    if not steps and frame:
        steps = [_Step(place=frame, line=0, called="")]
    stands = [_stand(steps, stack, unchanged=unchanged) for stack in stacks]
    over = False
    if tasks is not None and not foreign:
        named = [pair for pair in zip(tasks.names, stands, strict=True) if pair[0] not in tasks.cleared]
        stands = [stand for _, stand in named]
        failing = tasks.possible - {name for name, stand in named if stand is Stand.WAITING}
        over = bool(failing) and failing.isdisjoint(tasks.names)
    return Stand.AHEAD in stands or (Stand.WAITING in stands and Stand.PASSED not in stands and not over)


def _recorded(state: pb.RuntimeState, frame: str) -> list[_Step]:
    """The in-app frames of the recorded failure, outermost first."""
    if state.exceptions and first_in_app(state.exceptions[-1].frames) == frame:
        return _steps(state.exceptions[-1].frames, state.exceptions[-1].type)
    stack = next((one for one in state.threads if frame and first_in_app(one.frames) == frame), None)
    return _steps(stack.frames, "") if stack is not None else []


def _steps(frames: Sequence[pb.Frame], raised: str) -> list[_Step]:
    frames = list(itertools.takewhile(lambda frame: frame.module != _RECORDING, frames))  # what lies around is no part
    inner = [raised, *(frame.function for frame in frames)]
    steps = [
        _Step(place=_place(frame), line=frame.line, called=called.rpartition(".")[2])
        for frame, called in zip(frames, inner, strict=False)
        if frame.in_app
    ]
    return steps[::-1]


def _stand(steps: Sequence[_Step], stack: pb.Thread, *, unchanged: bool) -> Stand:
    """Where a stack stands to the failing line, by the outermost frame in which it left the recorded path."""
    now = {_place(frame): frame for frame in reversed(stack.frames) if frame.in_app}  # of a recursion the innermost
    shared = [step for step in steps if step.place in now]
    for step in shared:
        frame = now[step.place]
        if not step.line or frame.line < step.line:
            return Stand.AHEAD
        source = _Function.at(frame)
        if source is None or source.in_one_loop(step.line, frame.line, awaits=stack.kind == "asyncio-task"):
            return Stand.AHEAD
        if frame.line > step.line:
            return Stand.PASSED if unchanged or source.holds(step) else Stand.AHEAD
    if not shared:
        return Stand.ELSEWHERE
    return Stand.AHEAD if shared[-1] is steps[-1] else Stand.WAITING


def _place(frame: pb.Frame) -> str:
    return f"{frame.filename}:{frame.function}"


@dataclass(frozen=True, slots=True)
class _Function:
    """The source of the function that a frame is in."""

    node: ast.AST

    @classmethod
    def at(cls, frame: pb.Frame) -> _Function | None:
        file = getattr(sys.modules.get(frame.module), "__file__", None)
        try:
            tree = ast.parse(Path(file or "").read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError):
            return None
        around = [one for one in ast.walk(tree) if isinstance(one, _FUNCTIONS) and _has(one, frame.line)]
        return cls(max(around, key=lambda one: one.lineno)) if around else None

    def in_one_loop(self, one: int, other: int, *, awaits: bool) -> bool:
        """``awaits``: the frame waits at an ``await``, which is in the loop then: ``gather(*(f(x) for x in y))`` waits
        after its loop."""
        return any(
            isinstance(node, _LOOPS)
            and _has(node, one)
            and _has(node, other)
            and not (awaits and isinstance(node, _COMPREHENSIONS) and not _may_wait(node))
            for node in ast.walk(self.node)
        )

    def holds(self, step: _Step) -> bool:
        """Whether the recorded line calls, or raises, what it did then."""
        return bool(step.called) and any(
            (isinstance(node, ast.Call) and _has(node, step.line) and _name(node.func) == step.called)
            or (isinstance(node, ast.Raise) and _has(node, step.line) and step.called in _names(node))
            for node in ast.walk(self.node)
        )


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _has(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _may_wait(loop: ast.AST) -> bool:
    return any(isinstance(node, ast.Await) or getattr(node, "is_async", 0) for node in ast.walk(loop))


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> set[str]:
    return {_name(one) for one in ast.walk(node)}
