"""Handlers that answer beyond the recorded world, by real clients in a real replay."""

from __future__ import annotations

import urllib.request

import pytest

from dumps.schema import state_pb2 as pb
from replay.targets.app.fork import ForkHandlers, HandlerFailed
from tests.small_programs import play, says

PROGRAM = """
def main(url):
    return get(url + "/a")

def more(url, path="/new"):
    get(url + "/a")
    return get(url + path)

def swallows(url):
    try:
        return more(url)
    except Exception as error:
        return type(error).__name__
"""


@pytest.fixture(scope="module")
def recorded(programs):
    name = programs.write(PROGRAM)
    dump, url = programs.record_served(name, says("A"))
    return programs.module(name), dump, url


def forked(recorded, handler, variant="more", model=None, **arguments):
    module, dump, url = recorded
    fork = ForkHandlers(handler, model)
    env, outcome = play(dump, getattr(module, variant), fork=fork, url=url, **arguments)
    return fork, env, outcome


def exchange(**fields):
    answer = pb.Exchange(**fields)
    answer.chunks.add(data=b"from an ")
    answer.chunks.add(data=b"exchange")
    return answer


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ("text: ü", "text: ü"),
        (b"bytes", "bytes"),
        ({"json": [1, None]}, '{"json": [1, null]}'),
        ([], "[]"),
        (0, "0"),
        ("", ""),
        (exchange(), "from an exchange"),
        (exchange(status=200, framing="body"), "from an exchange"),
    ],
)
def test_what_a_handler_returns_is_what_the_program_gets(recorded, given, got):
    seen = []

    def handler(request):
        seen.append(request)
        return given

    fork, env, outcome = forked(recorded, handler)
    assert (outcome.ended, outcome.value) == ("returned", got)
    assert [(request.method, request.url.rpartition("/")[2]) for request in seen] == [("GET", "new")]
    assert [finding.code for finding in env.findings()] == ["forked"]
    assert fork.problem is None


@pytest.mark.parametrize(
    ("given", "headers", "body"),
    [
        ((201, {"a": 1}), [("Content-Type", "application/json")], b'{"a": 1}'),
        ((404, None), [("Content-Type", "text/plain; charset=utf-8")], b""),
        ((200, {"X-A": "1"}, "ü"), [("Content-Type", "text/plain; charset=utf-8"), ("X-A", "1")], "ü".encode()),
        ((200, [("content-type", "a/b"), ("X", "1"), ("X", "2")], b"z"), None, b"z"),
    ],
)
def test_a_tuple_is_status_headers_and_body(given, headers, body):
    answer = ForkHandlers(lambda request: given, None).handle(pb.Exchange(method="GET", url="http://h/x"))
    assert answer is not None
    got = [(header.key, header.value) for header in answer.response_headers]
    assert (answer.status, got, answer.chunks[0].data) == (given[0], headers or given[1], body)


def test_a_tuples_status_and_headers_reach_the_program(recorded):
    _, _, outcome = forked(recorded, lambda request: (200, {"Content-Type": "a/b"}, [1]))
    assert outcome.value == "[1]"
    _, _, outcome = forked(recorded, lambda request: (429, {"retry-after": "1"}, {}))
    assert "429" in str(outcome.error)
    assert outcome.error.headers["Retry-After"] == "1"


def test_a_handlers_status_reaches_the_program(recorded):
    _, _, outcome = forked(recorded, lambda request: exchange(status=503))
    assert "503" in str(outcome.error)


def test_none_leaves_a_request_and_it_stays_unrecorded(recorded):
    fork, env, outcome = forked(recorded, lambda request: None)
    assert (outcome.ended, fork.problem) == ("stopped", None)
    assert [refusal.kind for refusal in env.refusals] == ["unrecorded"]


def test_what_was_recorded_is_never_asked_of_a_handler(recorded):
    _, _, outcome = forked(recorded, lambda request: 1 / 0, "main")
    assert outcome.value == "A"


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({1, 2}, "returned set"),
        (float("nan"), "returned float"),
        (object(), "returned object"),
        ((200,), "a tuple of 1; a list is JSON"),
        ((1, 2, 3, 4), "a tuple of 4; a list is JSON"),
        (("x", "y"), "'x' is no status"),
        ((100, "y"), "100 is no status"),
        ((200, {"a": 1}, "y"), "headers are a dict or pairs of str"),
        ((200, "ab", "y"), "headers are a dict or pairs of str"),
        ((200, {1, 2}), "returned tuple"),
        ((200, {"a b": "c"}, "y"), "'a b' is no name of a header"),
        ((200, {"": "c"}, "y"), "'' is no name of a header"),
        ((200, [("a", "b\r\nc: d")], "y"), "the header a cannot have the value"),
        ((200, {"a": "\N{EURO SIGN}"}, "y"), "the header a cannot have the value"),
        (exchange(status=999), "999 is no status"),
        (exchange(response_headers=[{"key": "a\n", "value": "b"}]), "is no name of a header"),
    ],
)
def test_what_is_no_answer_is_the_handlers_failure(recorded, result, says):
    fork, _, _ = forked(recorded, lambda request: result)
    assert says in str(fork.problem)
    assert "GET http" in str(fork.problem)


async def _late(request):
    return "late"


def test_an_async_handler_is_told_to_be_a_plain_one(recorded):
    fork, _, _ = forked(recorded, _late)
    assert "coroutine" in str(fork.problem)
    assert "not async" in fork.problem.remedy


def test_a_handler_that_raises_is_found_though_the_program_swallows_it(recorded):
    def handler(request):
        raise LookupError("no such page")

    fork, _, outcome = forked(recorded, handler, "swallows")
    assert outcome.ended == "returned"
    assert isinstance(fork.problem, HandlerFailed)
    assert "LookupError for GET" in str(fork.problem)
    assert "no such page" in fork.problem.evidence
    assert fork.problem.exit_code == 2


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("now")])
def test_a_handler_that_leaves_has_failed_and_the_program_has_not_left(recorded, error):
    def handler(request):
        raise error

    fork, _, outcome = forked(recorded, handler)
    assert f"{type(error).__name__} for GET" in str(fork.problem)
    assert isinstance(outcome.error, HandlerFailed)


def test_a_handler_that_asks_the_network_gets_none(recorded):
    calls = []

    def handler(request):
        calls.append(request.url)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open("http://127.0.0.1:9/real") as answer:
            return answer.read()

    fork, _, _ = forked(recorded, handler)
    assert len(calls) == 1
    assert "UnrecordedRequest" in str(fork.problem)
    assert isinstance(fork.problem, HandlerFailed)
    assert "urllib/request.py" not in fork.problem.evidence
    assert "in handler" in fork.problem.evidence


def test_what_a_handler_leaves_the_model_answers(recorded):
    class Model:
        def answer(self, exchange):
            answer = pb.Exchange(status=200, framing="body")
            answer.chunks.add(data=b"{}", size=2)
            return answer

    request = pb.Exchange(method="POST", url="http://h/v1/chat/completions")
    answer = ForkHandlers(lambda request: None, Model()).handle(request)
    assert answer is not None
    assert answer.chunks[0].data == b"{}"
    assert ForkHandlers(lambda request: None, None).handle(request) is None
    assert ForkHandlers(lambda request: None, Model()).handle(pb.Exchange(method="GET", url="http://h/x")) is None
