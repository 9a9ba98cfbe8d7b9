"""Which JSON type an expression has, as far as its source says."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from replay.hooks.scopes import Scope

NOT_JSON = "no JSON"
"""Of what JSON cannot hold: the recorder would keep its repr, and no replay could give it back."""

_CALLS: Mapping[str, str] = {
    **dict.fromkeys(("str", "repr", "format", "chr", "hex", "ascii"), "string"),
    **dict.fromkeys(("int", "float", "len", "round", "ord", "hash", "id"), "number"),
    **dict.fromkeys(("bool", "isinstance", "hasattr", "callable", "any", "all"), "boolean"),
    **dict.fromkeys(("list", "tuple", "sorted"), "array"),
    "dict": "object",
    **dict.fromkeys(("set", "frozenset", "bytes", "bytearray", "complex", "object", "iter", "map", "zip"), NOT_JSON),
}
_ANNOTATIONS: Mapping[str, str] = {
    "str": "string",
    "bool": "boolean",
    "None": "null",
    **dict.fromkeys(("int", "float"), "number"),
    **dict.fromkeys(("list", "tuple", "List", "Tuple", "Sequence"), "array"),
    **dict.fromkeys(("dict", "Dict", "Mapping", "TypedDict"), "object"),
    **dict.fromkeys(("set", "frozenset", "bytes", "bytearray", "complex"), NOT_JSON),
}
_MAX_STEPS = 8  # from name to name


def json_type(node: ast.expr, scope: Scope, steps: int = 0) -> str | None:
    """ "string", "number", "boolean", "null", "array", "object", `NOT_JSON`, or None where the source does not say."""
    if steps > _MAX_STEPS:
        return None
    match node:
        case ast.Constant(value=value):
            return _of_constant(value)
        case ast.JoinedStr():
            return "string"
        case ast.List() | ast.Tuple() | ast.ListComp():
            return "array"
        case ast.Dict() | ast.DictComp():
            return "object"
        case ast.Set() | ast.SetComp() | ast.GeneratorExp() | ast.Lambda():
            return NOT_JSON
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return "boolean"
        case ast.UnaryOp(operand=operand):
            return json_type(operand, scope, steps + 1)
        case ast.BinOp(left=left, op=ast.Mod() | ast.Mult()) if json_type(left, scope, steps + 1) == "string":
            return "string"
        case ast.BinOp(left=left, right=right):
            return _one_of({json_type(left, scope, steps + 1), json_type(right, scope, steps + 1)})
        case ast.BoolOp(values=values):
            return _one_of(json_type(value, scope, steps + 1) for value in values)
        case ast.IfExp(body=body, orelse=orelse):
            return _one_of(json_type(value, scope, steps + 1) for value in (body, orelse))
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]) if _is_no_number(text):
            return NOT_JSON
        case ast.Call(func=ast.Name(id=name)) if not scope.knows(name):
            return _CALLS.get(name)
        case ast.Attribute(value=ast.Name(id="math"), attr="nan" | "inf"):
            return NOT_JSON
        case ast.Name(id=name):
            if (annotation := scope.annotation(name)) is not None:
                return _of_annotation(annotation)
            given = scope.value(name)
            return None if given is None else json_type(given, scope, steps + 1)
        case _:
            return None


def _of_constant(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case _:
            return NOT_JSON


def _is_no_number(text: str) -> bool:
    return text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


def _one_of(types: Iterable[str | None]) -> str | None:
    """The type of something that is one of these: known only where they agree. None of Python agrees with all."""
    found = set(types) - {"null"}
    return found.pop() if len(found) == 1 else None


def _of_annotation(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=None):
            return "null"
        case ast.Constant(value=str(text)):
            try:
                return _of_annotation(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return None
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _ANNOTATIONS.get(name)
        case ast.Subscript(value=value):
            return _of_annotation(value)
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return _one_of((_of_annotation(left), _of_annotation(right)))
        case _:
            return None
