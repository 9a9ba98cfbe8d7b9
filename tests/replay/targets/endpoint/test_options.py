"""Options: what URL a user means, and where a key may go."""

from __future__ import annotations

import pytest

from replay.errors import UsageError
from replay.targets.endpoint.options import api_key, endpoint_options


def options(url: str, **job):
    return endpoint_options({"target": f"endpoint={url}", **job})


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("https://h/openai/v1/", "https://h/openai/v1"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
    ],
)
def test_a_url_without_a_path_gets_the_usual_one(given, base):
    assert options(given).url == base


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:8000",
        "ftp://h",
        "file:///etc/passwd",
        "http://",
        "http://h:x",
        "http://h/v1?k=1",
        "http://h/a b",
        "http://h#f",
    ],
)
def test_what_is_no_base_url_is_refused(url):
    with pytest.raises(UsageError) as refused:
        options(url)
    assert refused.value.remedy


def test_a_password_in_the_url_is_refused_and_not_repeated():
    with pytest.raises(UsageError) as refused:
        options("http://me:hunter2@h/v1")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "job",
    [
        {"mode": "strict"},
        {"set": {"kv.num_blocks": 4}},
        {"window": 3},
        {"device": "cuda"},
        {"repeat": 0},
        {"repeat": True},
        {"timeout_s": 0},
        {"model": ""},
        {"proxy": "socks://h"},
    ],
)
def test_options_that_would_change_nothing_are_refused_by_name(job):
    with pytest.raises(UsageError) as refused:
        options("http://h", **job)
    assert next(iter(job)).removesuffix("_s") in str(refused.value)


@pytest.mark.parametrize(
    ("url", "named", "sent"),
    [
        ("https://elsewhere.test", None, True),
        ("http://127.0.0.1:1", None, True),
        ("http://localhost:1", None, True),
        ("http://[::1]:1", None, True),
        ("http://elsewhere.test", None, False),
        ("http://127.0.0.1.elsewhere.test", None, False),
        ("http://192.0.2.1", None, False),
        ("http://elsewhere.test", "OPENAI_API_KEY", True),
    ],
)
def test_the_usual_key_does_not_leave_the_machine_in_the_clear(url, named, sent):
    key, findings = api_key(options(url, api_key_env=named), {"OPENAI_API_KEY": "secret"})
    assert key == ("secret" if sent else "")
    assert [one["code"] for one in findings] == ([] if sent else ["api-key-not-sent"])
    assert "secret" not in str(findings)


def test_a_named_variable_must_be_set_and_usable():
    with pytest.raises(UsageError, match="NO_SUCH"):
        api_key(options("http://h", api_key_env="NO_SUCH"), {})
    with pytest.raises(UsageError, match="no HTTP header"):
        api_key(options("https://h"), {"OPENAI_API_KEY": "a\nb"})
