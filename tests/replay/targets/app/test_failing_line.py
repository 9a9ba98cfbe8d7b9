"""Whether the failing line lies ahead, told from stacks and the source they stand in."""

from __future__ import annotations

import sys
import textwrap
import types

import pytest

from dumps.schema import state_pb2 as pb
from replay.targets.app.failing_line import may_still_fail

SOURCE = """
def main():
    first()
    check()
    return last()

def looped():
    for item in range(3):
        check()
        last()

def raises():
    if first():
        raise ValueError("no")
    last()

def check():
    return {}["key"]
"""
LINES = {"first": 3, "check": 4, "last": 5, "loop-check": 9, "loop-last": 10, "raise": 14, "after-raise": 15}


@pytest.fixture
def module(tmp_path):
    """The name of a module with this source, and the file."""
    file = tmp_path / "failing_line_program.py"
    file.write_text(textwrap.dedent(SOURCE))
    made = types.ModuleType("failing_line_program")
    made.__file__ = str(file)
    sys.modules[made.__name__] = made
    yield file
    del sys.modules[made.__name__]


def frame(function: str, line: int, *, in_app: bool = True) -> pb.Frame:
    return pb.Frame(filename="p.py", function=function, line=line, in_app=in_app, module="failing_line_program")


def recorded(*frames: pb.Frame, kind: str = "KeyError") -> pb.RuntimeState:
    """A failure with this traceback, innermost first."""
    return pb.RuntimeState(exceptions=[pb.ExceptionInfo(type=kind, frames=frames)])


def may(state: pb.RuntimeState, *stacks: list[pb.Frame], unchanged: bool = False, foreign: bool = False) -> bool:
    top = next(one for one in state.exceptions[-1].frames if one.in_app)
    threads = [pb.Thread(kind="thread", frames=frames) for frames in stacks]
    return may_still_fail(state, f"p.py:{top.function}", threads, unchanged=unchanged, foreign=foreign)


IN_CHECK = recorded(frame("check", 18), frame("main", LINES["check"]))


@pytest.mark.parametrize(
    ("line", "ahead"), [("first", True), ("check", False), ("last", False)], ids=["before", "in-it", "after"]
)
def test_a_caller_further_down_has_passed_the_call(module, line, ahead):
    """On the line itself another call goes on, of which another stack tells."""
    others = [[frame("check", 19)]] if line == "check" else []
    assert may(IN_CHECK, [frame("main", LINES[line])], *others) == (ahead or bool(others))


def test_a_program_that_is_in_none_of_the_functions_has_left_them(module):
    assert not may(IN_CHECK, [frame("another", 1)])


def test_a_line_that_holds_another_call_now_proves_nothing(module):
    module.write_text(module.read_text().replace("    first()\n    check()", "    first()\n    audit()", 1))
    assert may(IN_CHECK, [frame("main", LINES["last"])])
    assert not may(IN_CHECK, [frame("main", LINES["last"])], unchanged=True)


def test_without_the_source_nothing_is_proved(module):
    module.unlink()
    assert may(IN_CHECK, [frame("main", LINES["last"])])


def test_in_a_loop_around_both_lines_nothing_is_passed(module):
    state = recorded(frame("check", 18), frame("looped", LINES["loop-check"]))
    assert may(state, [frame("looped", LINES["loop-last"])])
    assert may(state, [frame("looped", LINES["loop-last"])], unchanged=True)


def test_a_raise_is_passed_below_it(module):
    state = recorded(frame("raises", LINES["raise"]), kind="ValueError")
    assert not may(state, [frame("raises", LINES["after-raise"])])
    assert may(recorded(frame("raises", LINES["raise"]), kind="KeyError"), [frame("raises", LINES["after-raise"])])


def test_one_task_that_has_it_ahead_is_enough(module):
    assert may(IN_CHECK, [frame("main", LINES["last"])], [frame("main", LINES["first"])])


def test_of_a_failure_given_by_hand_only_the_function_is_known(module):
    assert may(IN_CHECK, [frame("check", 99)], foreign=True)
    assert not may(IN_CHECK, [frame("main", 1)], foreign=True)
