"""Words of a program's report that help who reads them: the right way out, and each thing once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dumps.schema.writer import write_dump
from replay.redaction import redact_file
from replay.runtime.alike import told_once
from replay.runtime.env import Finding, NoWorldRecorded, load_env
from tests.replay.targets.app.test_served_requests import Dump, verdict
from tests.small_programs import SmallPrograms, codes, says, state_of

PROGRAM = """
def main(url, then=lambda: None):
    text = get(url + "/a")
    then()
    parse(text)

def parse(text):
    raise ValueError(f"no number: {text}")

def mended(url):
    return get(url + "/a")

def reads(url):
    main(url, lambda: open("/nowhere/at/all").close())

def fine(url):
    return None

def counted(url, of=1000):
    raise ValueError(f"status {of - int(get(url + '/a'))}")

def counted_otherwise(url):
    counted(url, 2000)
"""


@pytest.fixture(scope="module")
def recorded(programs):
    name = programs.write(PROGRAM)
    dump, _ = programs.record_served(name, says("7"))
    return name, dump


def report_of(programs: SmallPrograms, recorded: tuple[str, Path], entry: str) -> dict[str, Any]:
    name, dump = recorded
    report = programs.replay(dump, f"{name}:{entry}").report
    assert report is not None
    return report


def test_who_asks_for_a_file_is_told_how_to_answer_that(programs, recorded):
    report = report_of(programs, recorded, "reads")
    (told,) = [one for one in report["findings"] if one["code"] == "beyond-the-record"]
    assert "load_env(DUMP).mock_syscall(NAME, handler)" in told["remedy"]
    assert "--handlers" not in told["remedy"]


@pytest.mark.parametrize(("entry", "expected"), [("mended", "not-reproduced"), ("fine", "inconclusive")])
def test_another_entry_than_the_recorded_one_is_named(programs, recorded, entry, expected):
    name, _ = recorded
    report = report_of(programs, recorded, entry)
    assert report["verdict"] == expected
    (told,) = [one["message"] for one in report["findings"] if one["code"] == "another-entry"]
    assert told == f"another entry was recorded: {name}:main; this replay called {name}:{entry}"


def test_the_recorded_entry_is_no_other(programs, recorded):
    assert "another-entry" not in codes(report_of(programs, recorded, "main"))


def test_the_hash_seed_is_told_where_a_message_differs(programs, tmp_path):
    name = programs.write(PROGRAM)
    dump, _ = programs.record_served(name, says("7"), entry="counted")
    state = state_of(dump)
    state.program.hash_seed = "random"
    dump = tmp_path / "random.pplx"
    write_dump(dump, state)
    assert "hash-seed" not in codes(programs.replay(dump, f"{name}:counted").report)
    report = programs.replay(dump, f"{name}:counted_otherwise").report
    assert report["verdict"] == "reproduced"
    assert {"message-differs", "hash-seed"} <= set(codes(report))


def test_a_copy_that_was_redacted_says_so(programs, recorded, tmp_path):
    name, dump = recorded
    redact_file(dump, tmp_path / "redacted.pplx", prompt=True)
    report = programs.replay(tmp_path / "redacted.pplx", f"{name}:main").report
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "program-without-text")
    told = report["findings"][0]
    assert "it was redacted, with --prompt" in told["message"]
    assert "record it with" not in told["remedy"]
    with pytest.raises(NoWorldRecorded, match="redacted, with --prompt"):
        load_env(tmp_path / "redacted.pplx")


def test_what_many_requests_ask_at_one_line_is_told_once():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        import httpx

        async with httpx.AsyncClient(trust_env=False) as client:
            await client.get("http://b.test/news")

    dump = Dump()
    requests = [dump.request() for _ in range(4)]
    for one in requests:
        one.status, one.ended_ns = 200, one.started_ns + 1000
    dump.failure(requests[-1].id, message="no more")
    found, env = dump.replay(app)
    assert verdict(found) == "not-reproduced"
    unrecorded = [one.message for one in env.findings() if one.code == "unrecorded"]
    assert len(unrecorded) == 1
    assert "and 3 times more at this line: task 'Task-14', task 'Task-21', task 'Task-28'" in unrecorded[0]
    failed = [one["message"] for one in found.findings if "failed, which it did not" in one["message"]]
    assert len(failed) == 3
    assert failed[0].endswith("test_what_many_requests_ask_at_one_line_is_told_once.<locals>.app)")
    assert not any("\n" in one or "\\n" in one for one in failed)


def test_other_findings_are_left_alone():
    found = [Finding(code="left-over", message="x1"), Finding(code="left-over", message="x1"),
             Finding(code="unrecorded", message="a call without a line")]  # fmt: skip
    assert told_once(found + found) == found + found


def test_a_failure_with_line_breaks_is_told_in_one_line():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await asyncio.sleep(0)
        raise ValueError("two\n  lines")

    dump = Dump()
    other, asked = dump.request(), dump.request()
    other.status, other.ended_ns = 200, other.started_ns + 1000
    dump.failure(asked.id, message="no more")
    found, _ = dump.replay(app)
    told = [one["message"] for one in found.findings]
    assert any(one.endswith("ValueError: two lines") for one in told), told
