"""What the names of a module and of its functions stand for, as far as its source says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(slots=True)
class Scope:
    """The names of a module or a function; ``above`` is the one it lies in.

    ``imports`` are full names ("dumps.record.seams.context.frame") by local ones. ``values`` are what a name is set to,
    None for what the source does not show. ``stores`` are keys and values that are put under them into what it holds.
    """

    node: ast.AST
    above: Scope | None = None
    imports: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    annotations: dict[str, ast.expr | None] = field(default_factory=dict)
    stores: dict[str, list[tuple[ast.expr, ast.expr]]] = field(default_factory=dict)

    def full_name(self, node: ast.expr) -> str:
        """The full name of ``frame``, ``context.frame`` or ``dumps.record.seams.context.frame``; "" for what has
        none."""
        match node:
            case ast.Name(id=name):
                owner = self._owner(name)
                if owner is None or name in owner.values or name in owner.annotations:
                    return ""  # one that is imported and defined could be either
                return owner.imports[name]
            case ast.Attribute(value=value, attr=attr):
                base = self.full_name(value)
                return f"{base}.{attr}" if base else ""
            case _:
                return ""

    def knows(self, name: str) -> bool:
        """Whether the source gives ``name`` a meaning of its own."""
        return self._owner(name) is not None

    def value(self, name: str) -> ast.expr | None:
        """What ``name`` is set to, where it is set only once."""
        owner = self._owner(name)
        values = owner.values.get(name, []) if owner else []
        return values[0] if len(values) == 1 else None

    def annotation(self, name: str) -> ast.expr | None:
        owner = self._owner(name)
        return owner.annotations.get(name) if owner else None

    def stored(self, name: str) -> list[tuple[ast.expr, ast.expr]]:
        owner = self._owner(name)
        return owner.stores.get(name, []) if owner else []

    def _owner(self, name: str) -> Scope | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.imports or name in scope.values or name in scope.annotations:
                return scope
            scope = scope.above
        return None


def walk(tree: ast.Module) -> Iterator[tuple[ast.AST, Scope]]:
    """Every node with the scope it lies in. The names of a scope are known before its nodes come."""
    yield from _walk(tree, Scope(tree))


def _walk(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    nodes = list(_own_nodes(node))
    for one in nodes:
        _note(one, scope)
    for one in nodes:
        yield one, scope
        if isinstance(one, Function):
            yield from _walk(one, _of_function(one, scope))


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What lies in a scope: everything below its node, and of a function in it only the function itself."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function):
            yield from _own_nodes(child)


def _of_function(node: Function, above: Scope) -> Scope:
    scope = Scope(node, above)
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    scope.annotations = {one.arg: one.annotation for one in every}
    for one in (arguments.vararg, arguments.kwarg):
        if one is not None:  # the annotation is that of each element
            scope.annotations[one.arg] = None
    return scope


def _note(node: ast.AST, scope: Scope) -> None:
    match node:
        case ast.Import(names=names):
            for alias in names:
                first = alias.name.partition(".")[0]
                scope.imports[alias.asname or first] = alias.name if alias.asname else first
        case ast.ImportFrom(module=str(module), names=names, level=0):
            for alias in names:
                scope.imports[alias.asname or alias.name] = f"{module}.{alias.name}"
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            scope.annotations.setdefault(name, None)
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                _bind(target, value, scope)
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
            scope.annotations[name] = annotation
            if value is not None:
                scope.values.setdefault(name, []).append(value)
        case ast.NamedExpr(target=target, value=value):
            _bind(target, value, scope)
        case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)):
            scope.values.setdefault(name, []).append(value)
        case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
            _unknown(target, scope)
        case ast.AugAssign(target=target):
            _unknown(target, scope)


def _bind(target: ast.expr, value: ast.expr, scope: Scope) -> None:
    match target:
        case ast.Name(id=name):
            scope.values.setdefault(name, []).append(value)
        case ast.Subscript(value=ast.Name(id=name), slice=key):
            scope.stores.setdefault(name, []).append((key, value))
        case _:
            _unknown(target, scope)


def _unknown(target: ast.expr, scope: Scope) -> None:
    """Names that are set to something that the source does not show."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            scope.annotations.setdefault(node.id, None)
            scope.values.setdefault(node.id, []).append(None)
