"""Errors by which the system keeps a replay out, told from those of a program and of its record."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from dumps.record.stacks import capture_exception
from dumps.schema import state_pb2 as pb
from replay.errors import Refused
from replay.runtime.files import Files
from replay.runtime.syscalls import raise_error
from replay.targets.app.kept_out import kept_out


def by_the_system() -> None:
    """EPERM from C, for anybody."""
    os.unlink("/proc/self/status")


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def wrapped() -> None:
    try:
        by_the_system()
    except OSError as error:
        raise RuntimeError("the pool is broken") from error


def grouped() -> None:
    raise BaseExceptionGroup("both", [ValueError("one"), caught(wrapped)])


def raised_by_the_program() -> None:
    raise PermissionError(errno.EACCES, "the service says no")


def from_the_record() -> None:
    call = pb.Syscall(name="open", args=["secret.txt"], errno_name="EACCES")
    raise_error(call, "secret.txt")


def past_a_stand_in() -> None:
    files = Files([])
    undo = files.install()
    try:
        by_the_system()
    finally:
        undo()


def raised_without_a_number() -> None:
    raise PermissionError("the service says no")


def raised_again() -> None:
    try:
        by_the_system()
    except OSError:
        raise


def missing() -> None:
    os.stat("/nowhere/at/all")


@pytest.mark.parametrize("function", [by_the_system, wrapped, grouped, raised_again, past_a_stand_in])
def test_what_the_system_denied_is_found_wherever_it_stands(function):
    assert "by_the_system" in kept_out(caught(function), [])


def test_what_code_says_of_its_own_cannot_be_told_from_it():
    assert "the service says no" in kept_out(caught(raised_by_the_program), [])


@pytest.mark.parametrize("function", [from_the_record, missing, raised_without_a_number])
def test_what_was_recorded_and_other_errors_are_the_programs(function):
    assert kept_out(caught(function), []) == ""


def test_what_the_recorded_program_was_denied_too_is_its_own_failure():
    recorded = capture_exception(caught(wrapped))
    assert kept_out(caught(wrapped), recorded) == ""
    assert kept_out(caught(by_the_system), capture_exception(caught(missing))) != ""


def test_what_we_refuse_is_said_elsewhere_and_nothing_is_nothing():
    assert kept_out(Refused("refused during a replay"), []) == ""
    assert kept_out(None, []) == ""
