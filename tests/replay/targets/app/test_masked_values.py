"""Programs that read a secret: what the recording kept of it is enough, or the report says that it was not."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

from tests.small_programs import SmallPrograms, says

READS = """
import base64

def expires(url):
    token = json.loads(get(url))["access_token"]
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    if claims["exp"] < time.time():
        raise PermissionError("expired")

def begins(url):
    if json.loads(get(url))["access_token"].startswith("tok_"):
        raise PermissionError("an old kind of token")

def falls(url):
    if len(json.loads(get(url))["access_token"]) == 11:
        raise PermissionError("an old kind of token")
"""


@pytest.fixture
def programs(tmp_path: Path) -> SmallPrograms:
    return SmallPrograms(tmp_path)


def ends(programs: SmallPrograms, entry: str, token: str) -> tuple[str, list[str]]:
    name = programs.write(READS)
    dump, _ = programs.record_served(name, says(json.dumps({"access_token": token})), entry=entry)
    report = programs.replay(dump, f"{name}:{entry}").report
    assert report is not None
    return report["verdict"], [one["message"] for one in report["findings"] if one["code"] == "masked-values"]


def test_a_program_that_looks_when_its_web_token_expires_fails_again(programs: SmallPrograms) -> None:
    parts = [{"alg": "HS256"}, {"exp": int(time.time()) - 5, "sub": "jane"}]
    header, claims = (base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts)
    assert ends(programs, "expires", f"{header}.{claims}.c2lnbmVkIGJ5IHVz") == ("reproduced", [])


def test_one_that_looks_at_the_text_of_a_secret_is_told_what_it_read(programs: SmallPrograms) -> None:
    verdict, (said,) = ends(programs, "begins", "tok_1234567")
    assert verdict == "not-reproduced"
    assert "xxxx" in said
    assert "GET http" in said


def test_nothing_is_said_where_the_failure_came_back(programs: SmallPrograms) -> None:
    assert ends(programs, "falls", "tok_1234567") == ("reproduced", [])
