"""Checks the state that programs hand to the recorder: keys that a dump can be asked for years later.

The recorder keeps what `dumps.record.seams.context.frame` gets as a payload and what `Recording.call` and
`Recording.note_entry` get as arguments, as JSON. Whatever does not fit into JSON becomes text there, silently, and a
key that is a string here and a number there cannot be compared between two dumps. Both show in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from replay.hooks.json_types import NOT_JSON, json_type
from replay.hooks.scopes import Scope, walk

FRAME = "dumps.record.seams.context.frame"
RECORDINGS = frozenset({"dumps.record.program.recording", "dumps.record.program.Recording"})
MAX_DEPTH = 3


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    path: Path
    line: int
    column: int
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class Declared:
    """A key of a frame's payload or of an entry's arguments, with the JSON type of what stands under it if it is
    known."""

    owner: str
    key: str
    type: str | None
    path: Path
    line: int


@dataclass(slots=True, kw_only=True)
class StateKeys:
    """The check. Hand it every module, then ask for the findings.

    ``max_depth`` is how deep dictionaries and lists may lie in each other, 1 for a flat payload. ``strict_typing`` also
    wants one JSON type for each key of a frame kind, and kinds that are literal.
    """

    max_depth: int = MAX_DEPTH
    strict_typing: bool = False
    declared: list[Declared] = field(default_factory=list)
    modules: int = 0
    _findings: list[Finding] = field(default_factory=list)
    _used: list[tuple[Path, ast.AST, str]] = field(default_factory=list)
    _unknown: bool = False  # a payload whose keys are not to be seen: then any key may be declared
    _path: Path = field(default_factory=Path)

    def read(self, path: Path, source: str | bytes) -> None:
        """Check a module. One that is no Python is a finding, too."""
        self.modules += 1
        self._path = path
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None) or 1
            self._findings.append(Finding(path, line, 1, "no-python", f"cannot be read: {error}"))
            return
        for node, scope in walk(tree):
            if isinstance(node, ast.Call):
                self._call(node, scope)
            if (key := _used_key(node)) is not None:
                self._used.append((path, node, key))

    def findings(self) -> list[Finding]:
        """By file and line."""
        found = [*self._findings, *(self._mixed() if self.strict_typing else ()), *self._undeclared()]
        return sorted(set(found))

    def _call(self, node: ast.Call, scope: Scope) -> None:
        if scope.full_name(node.func) == FRAME:
            kind, payload = _argument(node, 0, "kind"), _argument(node, 1, "payload")
            owner = _literal(kind, scope) if kind is not None else None
            if owner is None and self.strict_typing:
                self._add(
                    node, "computed-kind", "the kind of a frame is not a literal string: no dump can be asked for it"
                )
            if payload is not None:
                self._payload(f"frame {owner!r}" if owner is not None else "", payload, scope)
        elif isinstance(node.func, ast.Attribute) and _is_recording(node.func.value, scope):
            function = ast.unparse(node.args[0]) if node.args else ""
            if node.func.attr == "call":
                for keyword in node.keywords:
                    if keyword.arg is not None:
                        self._entry(f"call of {function}", keyword.arg, keyword.value, scope, 1)
            elif node.func.attr == "note_entry" and (arguments := _argument(node, 1, "arguments")) is not None:
                self._payload(f"call of {function}", arguments, scope)

    def _payload(self, owner: str, node: ast.expr, scope: Scope) -> None:
        """What is handed over as a dictionary: written there, or in a variable that is set once."""
        seen: list[str] = []
        while isinstance(node, ast.Name) and node.id not in seen:
            seen.append(node.id)
            for key, value in scope.stored(node.id):
                self._pair(owner, key, value, scope, 1)
            found = scope.value(node.id)
            if found is None:
                break
            node = found
        match node:
            case ast.Dict():
                self._dict(owner, node, scope, 1)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                for keyword in keywords:
                    if keyword.arg is not None:
                        self._entry(owner, keyword.arg, keyword.value, scope, 1)
            case ast.DictComp():
                self._add(node, "computed-key", "keys of a comprehension are not literal strings")
            case ast.Constant(value=None):
                pass
            case _:
                self._unknown = True

    def _dict(self, owner: str, node: ast.Dict, scope: Scope, depth: int) -> None:
        if not self._fits(node, depth):
            return
        seen: set[str] = set()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                spread = scope.value(value.id) if isinstance(value, ast.Name) else value
                if isinstance(spread, ast.Dict):
                    self._dict(owner, spread, scope, depth)
                else:
                    self._unknown = True
                    self._add(
                        value, "computed-key", f"'**{ast.unparse(value)}' brings keys that are not to be seen here"
                    )
                continue
            name = self._pair(owner, key, value, scope, depth)
            if name is not None and name in seen:
                self._add(key, "key-twice", f"the key {name!r} stands twice, and the first value is lost")
            seen |= {name} if name is not None else set()

    def _pair(self, owner: str, key: ast.expr, value: ast.expr, scope: Scope, depth: int) -> str | None:
        name = _literal(key, scope)
        if name is None:
            self._unknown |= not isinstance(key, ast.Constant)
            self._add(key, "computed-key", f"the key {ast.unparse(key):.60} is not a literal string")
            self._value(owner, value, scope, depth)
            return None
        self._entry(owner, name, value, scope, depth)
        return name

    def _entry(self, owner: str, name: str, value: ast.expr, scope: Scope, depth: int) -> None:
        found = json_type(value, scope)
        self.declared.append(Declared(owner if depth == 1 else "", name, found, self._path, value.lineno))
        self._value(f"{owner}, {name!r}" if owner else "", value, scope, depth)

    def _value(self, owner: str, value: ast.expr, scope: Scope, depth: int) -> None:
        if json_type(value, scope) == NOT_JSON:
            self._add(value, "not-json", f"JSON cannot hold {ast.unparse(value):.60}; the dump would keep its repr")
        elif isinstance(value, ast.Dict):
            self._dict(owner, value, scope, depth + 1)
        elif isinstance(value, ast.List | ast.Tuple) and self._fits(value, depth + 1):
            for element in value.elts:
                self._value(owner, element, scope, depth + 1)

    def _fits(self, node: ast.expr, depth: int) -> bool:
        if depth > self.max_depth:
            self._add(node, "too-deep", f"nested {depth} deep, and at most {self.max_depth} are allowed")
        return depth <= self.max_depth

    def _add(self, node: ast.expr, code: str, message: str) -> None:
        self._findings.append(Finding(self._path, node.lineno, node.col_offset + 1, code, message))

    def _mixed(self) -> Iterator[Finding]:
        """Keys of one frame kind, or one entry, that hold values of different types. Null goes with every type."""
        first: dict[tuple[str, str], Declared] = {}
        for one in self.declared:
            if not one.owner or one.type in (None, "null", NOT_JSON):
                continue
            other = first.setdefault((one.owner, one.key), one)
            if other.type != one.type:
                where = f"{other.path}:{other.line}"
                message = f"{one.key!r} of {one.owner} is a {one.type} here and a {other.type} in {where}"
                yield Finding(one.path, one.line, 1, "mixed-types", message)

    def _undeclared(self) -> Iterator[Finding]:
        """Keys that are asked of a recorded payload and that nobody puts there."""
        known = {one.key for one in self.declared}
        if self._unknown or not known:
            return
        for path, node, key in self._used:
            if key not in known:
                line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
                yield Finding(path, line, column, "undeclared-key", f"no frame has the key {key!r} in its payload")


def _argument(node: ast.Call, index: int, name: str) -> ast.expr | None:
    if len(node.args) > index and not any(isinstance(one, ast.Starred) for one in node.args[: index + 1]):
        return node.args[index]
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def _literal(node: ast.expr, scope: Scope) -> str | None:
    """The string, written here or as a constant of the module."""
    found = scope.value(node.id) if isinstance(node, ast.Name) else node
    return found.value if isinstance(found, ast.Constant) and isinstance(found.value, str) else None


def _is_recording(node: ast.expr, scope: Scope) -> bool:
    """Whether a name stands for a recording: set to one, by ``with ... as`` or ``=``."""
    value = scope.value(node.id) if isinstance(node, ast.Name) else None
    return isinstance(value, ast.Call) and scope.full_name(value.func) in RECORDINGS


def _used_key(node: ast.AST) -> str | None:
    """The key of ``….recorded[i].payload["key"]``, or the same with ``.get("key")`` or ``replayed(...)``."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="payload", value=frame), slice=ast.Constant(value=str(key))):
            pass
        case ast.Call(
            func=ast.Attribute(attr="get", value=ast.Attribute(attr="payload", value=frame)),
            args=[ast.Constant(value=str(key)), *_],
        ):
            pass
        case _:
            return None
    match frame:
        case ast.Subscript(value=ast.Attribute(attr="recorded")):
            return key
        case ast.Subscript(value=ast.Call(func=ast.Attribute(attr="replayed"))):
            return key
        case _:
            return None
