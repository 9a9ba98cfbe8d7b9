"""The static check of what programs hand to the recorder."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from replay.hooks.state_keys import StateKeys

HEAD = "from dumps.record.seams.context import frame, message\nfrom dumps.record.seams import context\n"


def findings(*sources: str, depth: int = 3, strict: bool = True) -> list[tuple[int, str]]:
    """Line (of the source without its head) and code of each."""
    check = StateKeys(max_depth=depth, strict_typing=strict)
    for index, source in enumerate(sources):
        check.read(Path(f"m{index}.py"), HEAD + textwrap.dedent(source).lstrip("\n"))
    return [(found.line - 2, found.code) for found in check.findings()]


@pytest.mark.parametrize(
    "source",
    [
        'frame("turn", {"number": 3, "name": None, "parts": ["a", ("b",)], "more": {"deep": 1.5}})',
        'frame("turn")\nframe("turn", None)\nframe("turn", payload=dict(number=3))',
        'context.frame("turn", payload={"number": len([])}, message_id="m3")',
        'import dumps.record.seams.context as c\nc.frame("turn", {"number": 3})',
        'KEY = "number"\nframe("turn", {KEY: 3})',
        'base = {"number": 3}\nframe("turn", {**base, "name": f"{base}"})',
        'def f(number: int, parts: "list[str] | None"):\n    frame("turn", {"number": number, "parts": parts})',
        'def f(anything):\n    frame("turn", anything)\n    frame("turn", {"x": anything})',
        'def frame(kind, payload): ...\nframe("turn", {1: {2, 3}})',
        'from other import frame\nframe("turn", {1: b""})',
        'frame("turn", {"number": 3})\nframe("tool", {"number": "three"})',
        'frame("turn", {"number": 3})\nframe("turn", {"number": None})\nframe("turn", {"number": 4.5})',
        'frame("turn", {"set": sorted({1, 2}), "n": int("3"), "b": not 3, "s": "%s" % 3})',
        'def f():\n    frame("turn", data)\n\ndef g():\n    data = {"a": {1}}',
        "message('user', {1: 2})",
    ],
)
def test_what_json_holds_under_literal_keys_is_fine(source):
    assert findings(source) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('frame("turn", {name: 3})', [(1, "computed-key")]),
        ('frame("turn", {f"n{1}": 3})', [(1, "computed-key")]),
        ('frame("turn", {1: 3})', [(1, "computed-key")]),
        ('frame("turn", {"a": {"b": 1, x: 2}})', [(1, "computed-key")]),
        ('frame("turn", {k: v for k, v in x})', [(1, "computed-key")]),
        ('frame("turn", {**unknown()})', [(1, "computed-key")]),
        ('frame("turn", {"a": 1, "a": 2})', [(1, "key-twice")]),
        ('frame("turn", {"a": {1, 2}})', [(1, "not-json")]),
        ('frame("turn", {"a": b""})', [(1, "not-json")]),
        ('frame("turn", {"a": lambda: 3})', [(1, "not-json")]),
        ('frame("turn", {"a": float("nan")})', [(1, "not-json")]),
        ('frame("turn", {"a": [1, {2}]})', [(1, "not-json")]),
        ('seen = set()\nframe("turn", {"a": seen})', [(2, "not-json")]),
        ('def f(data: bytes):\n    frame("turn", {"a": data})', [(2, "not-json")]),
        ('payload = {"a": 1}\npayload["b"] = b""\nframe("turn", payload)', [(2, "not-json")]),
        ('frame("turn", {"a": {"b": {"c": {"d": 1}}}})', [(1, "too-deep")]),
        ('frame("turn", {"a": [[[1]]]})', [(1, "too-deep")]),
        ("frame(kind, {})", [(1, "computed-kind")]),
        ('frame("turn", {"n": 3})\nframe("turn", {"n": "3"})', [(2, "mixed-types")]),
        ('frame("turn", {"n": 3})\nframe("turn", {"n": True})', [(2, "mixed-types")]),
        (
            'def f(n: str):\n    frame("turn", {"n": n})\n\ndef g(n: int):\n    frame("turn", {"n": n})',
            [(5, "mixed-types")],
        ),
        ("def", [(1, "no-python")]),
    ],
)
def test_what_a_dump_could_not_be_asked_for_is_found(source, found):
    assert findings(source) == found


def test_types_and_kinds_matter_only_where_typing_is_strict():
    assert findings('frame("turn", {"n": 3})\nframe("turn", {"n": "3"})\nframe(kind, {})', strict=False) == []


def test_depth_counts_dictionaries_and_lists():
    flat, nested = 'frame("turn", {"a": 1})', 'frame("tool", {"a": [1]})'
    assert findings(flat, nested, depth=1) == [(1, "too-deep")]
    assert findings(flat, nested, depth=2) == []


def test_types_are_compared_across_modules():
    check = StateKeys(strict_typing=True)
    check.read(Path("a.py"), HEAD + 'frame("turn", {"n": 3})')
    check.read(Path("b.py"), HEAD + 'frame("turn", {"n": "3"})')
    assert [str(found) for found in check.findings()] == [
        "b.py:3:1: mixed-types: 'n' of frame 'turn' is a string here and a number in a.py:3"
    ]


def test_arguments_of_a_recorded_call_are_state_too():
    source = """
    from dumps.record.program import recording
    with recording("dumps/") as rec:
        rec.call(main, question="q", tags={"a"})
        rec.note_entry(main, {"question": 3})
    other.call(main, tags={"a"})
    """
    assert findings(source) == [(3, "not-json"), (4, "mixed-types")]


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ('env.context.recorded[-1].payload["number"]', []),
        ('env.context.recorded[-1].payload["nmber"]', [(2, "undeclared-key")]),
        ('env.context.recorded[-1].payload.get("nmber")', [(2, "undeclared-key")]),
        ('env.context.replayed(error)[0].payload["nmber"]', [(2, "undeclared-key")]),
        ('request.payload["nmber"]', []),
        ('frame("x", make())\nenv.context.recorded[-1].payload["nmber"]', []),
    ],
)
def test_what_is_asked_of_a_recorded_payload_must_be_declared_somewhere(use, found):
    assert findings(f'frame("turn", {{"number": 3}})\n{use}') == found
