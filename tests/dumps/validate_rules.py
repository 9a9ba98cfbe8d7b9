"""The rules that `dumps.validate` knows, read from its code: every text that a finding's rule can be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import dumps.validate

REPORTS = ("Finding", "check_le32", "check_range")
"""Calls whose first argument is a rule."""

Function = ast.FunctionDef


@dataclass
class Code:
    """All modules of the package. `values` follows an expression back to the texts that it can be."""

    functions: list[Function]

    def rules(self) -> set[str]:
        found: set[str] = set()
        for function in self.functions:
            for call in _calls(function):
                if _name(call) in REPORTS and function.name not in REPORTS:
                    found |= self.values(call.args[0], function)
        return found

    def values(self, node: ast.expr, function: Function) -> set[str]:
        if isinstance(node, ast.Constant):
            return {str(node.value)}
        if isinstance(node, ast.JoinedStr):
            parts = [self.values(part, function) for part in node.values]
            return {"".join(texts) for texts in product(*parts)}
        if isinstance(node, ast.FormattedValue):
            return self.values(node.value, function)
        if isinstance(node, ast.IfExp):
            return self.values(node.body, function) | self.values(node.orelse, function)
        if isinstance(node, ast.Name):
            return self.of_name(node.id, function)
        raise NotImplementedError(f"{ast.unparse(node)} in {function.name}")

    def of_name(self, name: str, function: Function) -> set[str]:
        names = [argument.arg for argument in function.args.args]
        if name in names:
            place = names.index(name)
            callers = [(call, one) for one in self.functions for call in _calls(one) if _name(call) == function.name]
            return {text for call, one in callers for text in self.values(call.args[place], one)}
        found: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                found |= self.values(node.value, function)
            elif isinstance(node, ast.For):
                for value in _looped(node, name):
                    found |= self.values(value, function)
        if not found:
            raise NotImplementedError(f"{name} in {function.name}")
        return found


def rules_in_code() -> set[str]:
    """Raises NotImplementedError for a rule that is made in a way this does not follow."""
    modules = sorted(Path(dumps.validate.__file__).parent.glob("*.py"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in modules]
    return Code([node for tree in trees for node in ast.walk(tree) if isinstance(node, Function)]).rules()


def _calls(function: Function) -> Iterator[ast.Call]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Call))


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _looped(loop: ast.For, name: str) -> Iterator[ast.expr]:
    """What a loop over literal tuples gives to ``name``."""
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    places = [place for place, one in enumerate(targets) if isinstance(one, ast.Name) and one.id == name]
    if places and isinstance(loop.iter, ast.Tuple):
        for item in loop.iter.elts:
            yield item.elts[places[0]] if isinstance(item, ast.Tuple) else item
