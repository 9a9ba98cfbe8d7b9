"""The context stack of a program: what it was in the middle of, innermost last.

    from dumps.record.seams.context import frame, message

    with frame("agent-turn", {"turn": 3}, message_id="m3"):
        message("user", text, id="m4")
        with frame("tool", {"name": "search"}): ...

Frames belong to the task (or thread) that entered them; a task that is started inside a frame has it below its own.
Without a recording or a replay both do nothing.

An exception unwinds the frames that it passes, so the stack as it was at its innermost frame is kept with it:
`ContextStack.at`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dumps.record.message_text import utf8
from dumps.record.recorder import RecordLevel
from dumps.record.seams import current
from dumps.record.seams.json_text import to_json
from dumps.record.seams.log import WorldLog, inbound
from dumps.schema import state_pb2 as pb

MAX_DEPTH = 200  # frames of one stack in a dump; the outermost are left out
MAX_MESSAGES = 50  # of one frame; the oldest are left out, and counted
MAX_CONTENT = 16 * 1024  # characters of one message
MAX_PAYLOAD = 64 * 1024
MAX_LIVE = 10_000  # frames at once in a process

_NOTE = "__pplx_context__"  # in the __dict__ of an exception: it goes away with the exception, and holds nothing alive


def frame(kind: str, payload: Mapping[str, Any] | None = None, *, message_id: str = "") -> AbstractContextManager[None]:
    """A context manager: inside it the program is in the middle of ``kind``. ``payload`` says of what, as JSON."""
    world = current.active()
    if world is None or world.context is None:
        return nullcontext()
    return world.context.frame(kind, payload or {}, message_id)


def message(role: str, content: Any, id: str = "") -> None:  # the name that chat APIs give it
    """Note a message of the conversation in the innermost frame. Its id becomes the frame's ``last_message_id``."""
    world = current.active()
    if world is not None and world.context is not None:
        world.context.message(role, content, id)


def install(log: WorldLog) -> Callable[[], None]:
    """Keep the process's context stacks from here on; `stack` finds them. Returns the function that ends it."""
    return current.activate(context=ContextStack(log.level))


def stack() -> ContextStack | None:
    """The stacks of the recording or replay that is in force."""
    world = current.active()
    return world.context if world is not None and isinstance(world.context, ContextStack) else None


@dataclass(slots=True, eq=False)
class _Node:
    """One frame; ``parent`` is below it."""

    kind: str
    payload: str
    message_id: str
    parent: _Node | None
    messages: list[str] = field(default_factory=list)  # JSON each
    dropped: int = 0
    active: int = 0  # when it was last entered or spoken in: a number that only grows
    within: str = ""  # the inbound exchange in whose handling it was entered


class ContextStack:
    """The context stacks of all tasks and threads. Payloads and texts are kept only at level "full"."""

    def __init__(self, level: RecordLevel) -> None:
        self._level = level
        self._lock = threading.RLock()  # reentrant: a signal handler that makes a dump may interrupt a frame's entry
        self._counter = itertools.count(1)
        self._live: set[_Node] = set()
        self._top: ContextVar[_Node | None] = ContextVar("pplx_context", default=None)
        self._root: _Node | None = None

    @contextmanager
    def frame(self, kind: str, payload: Mapping[str, Any], message_id: str) -> Iterator[None]:
        node = self._push(kind, payload, message_id)
        try:
            yield
        except BaseException as error:
            self._note(error, node)
            raise
        finally:
            self._pop(node)

    def message(self, role: str, content: Any, message_id: str) -> None:
        text = to_json(content, limit=MAX_CONTENT)
        entry = {"id": message_id, "role": role}
        shown = f', "content": {text}' if self._level == "full" else f', "size": {len(text)}'
        with self._lock:
            node = self._innermost()
            if node is None:  # outside every frame: the program itself
                self._root = self._root or _Node("program", "{}", "", None)
                node = self._root
            node.message_id = message_id or node.message_id
            node.messages.append(to_json(entry)[:-1] + shown + "}")
            node.active = next(self._counter)
            if len(node.messages) > MAX_MESSAGES:
                del node.messages[0]
                node.dropped += 1

    def frames(self, *, within: str = "") -> list[pb.ContextFrame]:
        """The stack of the calling task or thread, outermost first; where it has none, of the one that was active
        last: a signal finds the program wherever it is. ``within`` asks for one that handles this inbound exchange."""
        with self._lock:
            live = [one for one in self._live if not within or one.within == within]
            node = self._innermost() or max(live, key=lambda one: one.active, default=self._root)
            return self._chain(node)

    def at(self, error: BaseException) -> list[pb.ContextFrame]:
        """The stack in which ``error``, or what it came from, was raised; else `frames`."""
        seen: set[int] = set()
        found: list[pb.ContextFrame] | None = None
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            noted = getattr(link, "__dict__", {}).get(_NOTE)
            found = list(noted) if noted else found
            link = link.__cause__ or link.__context__
        return found if found is not None else self.frames()

    def _push(self, kind: str, payload: Mapping[str, Any], message_id: str) -> _Node:
        text = to_json(payload, limit=MAX_PAYLOAD) if self._level == "full" else "{}"
        below, now = self._innermost(), next(self._counter)
        node = _Node(str(kind), text, str(message_id), below, active=now, within=inbound.get())
        with self._lock:
            if len(self._live) < MAX_LIVE:
                self._live.add(node)
        self._top.set(node)
        return node

    def _pop(self, node: _Node) -> None:
        with self._lock:
            self._live.discard(node)
            if node.parent is not None:
                node.parent.active = next(self._counter)
        # Not ContextVar.reset: a generator may be closed in another context than it was begun in.
        if self._top.get() is node:
            self._top.set(node.parent)

    def _innermost(self) -> _Node | None:
        return self._top.get()

    def _note(self, error: BaseException, node: _Node) -> None:
        noted = getattr(error, "__dict__", None)
        if noted is not None and _NOTE not in noted:
            with self._lock:
                noted[_NOTE] = tuple(self._chain(node))

    def _chain(self, node: _Node | None) -> list[pb.ContextFrame]:
        nodes: list[_Node] = []
        while node is not None:
            nodes.append(node)
            node = node.parent
        if self._root is not None and self._root not in nodes:
            nodes.append(self._root)
        depth = len(nodes)
        kept = [(depth - index, one) for index, one in enumerate(nodes[:MAX_DEPTH])]
        return [
            pb.ContextFrame(
                stack_depth=at,
                last_message_id=utf8(one.message_id),
                kind=utf8(one.kind),
                payload_json=_payload(one),
            )
            for at, one in reversed(kept)
        ]


def _payload(node: _Node) -> str:
    dropped = f', "messages_left_out": {node.dropped}' if node.dropped else ""
    return f'{{"payload": {node.payload}, "messages": [{", ".join(node.messages)}]{dropped}}}'
