"""What GitHub's runner is told, by text that comes from anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.cli.fixture_view import Checked, Problem
from replay.cli.github import MAX_ANNOTATIONS, errors_of, markdown
from replay.fixtures.document import InvalidFixture

HOSTILE = "a,b:c%\r\n::set-env name=PATH::/evil|<img src=x>[x](http://y)`"


def problem(text: str = "x", title: str = "t") -> Problem:
    return Problem(file=Path("fixtures/a/fixture.json"), title=title, text=text)


def test_no_value_leaves_its_place_in_a_command():
    (line,) = errors_of([problem(HOSTILE, HOSTILE)])
    assert "\n" not in line
    assert "\r" not in line
    properties = line.removeprefix("::error ").partition("::")[0].split(",")
    assert [one.partition("=")[0] for one in properties] == ["file", "title"]
    assert properties[1].startswith("title=a%2Cb%3Ac%25")


def test_a_message_and_what_to_do_stand_on_lines_of_their_own():
    found = Problem(file=Path("f.json"), title="t", text="it is gone", remedy="say so")
    assert errors_of([found]) == ["::error file=f.json,title=t::it is gone%0Asay so"]


@pytest.mark.parametrize("count", [0, 1, MAX_ANNOTATIONS, MAX_ANNOTATIONS + 1, 100])
def test_more_than_github_shows_are_counted_in_the_last(count):
    lines = errors_of([problem(f"number {index}") for index in range(count)])
    assert len(lines) == min(count, MAX_ANNOTATIONS)
    if count > MAX_ANNOTATIONS:
        assert lines[-1].endswith(f"{count - MAX_ANNOTATIONS + 1} more fixtures failed; see the log of this step")


def test_nothing_is_markup_in_the_summary():
    bad = Checked(path=Path(f"fixtures/{HOSTILE}"), invalid=InvalidFixture(HOSTILE, remedy=HOSTILE))
    text = markdown([bad], [problem(HOSTILE, HOSTILE)])
    row = next(line for line in text.splitlines() if "cannot be read" in line)
    assert row.count("|") == 6
    for char in "<[`":
        assert char not in text
    assert "http:" not in text
