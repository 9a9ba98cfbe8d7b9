"""What the report says of an endpoint's words and texts, and what people read of it."""

from __future__ import annotations

import json
import socket

from replay.cli.endpoint_view import endpoint_meaning, endpoint_rows
from tests.replay.targets.endpoint.endpoints import CUT, PATH, error, refusal, streamed, text, usage
from tests.reports import findings
from tests.scripted_server import scripted_server
from tests.small_dump import failing_with, small_state


def test_a_server_that_is_down_is_said_to_be(replay):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    report = replay(f"http://127.0.0.1:{port}", repeat=5)
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "endpoint-unreachable")
    assert report["repeat"] == {"n": 1, "reproduced": 0}, "asking a dead server five times tells no more"
    assert str(port) in findings(report, "endpoint-said")[0]["message"]


def test_a_model_that_is_not_there_is_named_with_those_that_are(replay):
    models = json.dumps({"data": [{"id": "other-model"}]}).encode()
    listing = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(models), models]
    missing = error(404, refusal("The model `smollm2-135m` does not exist.", code="model_not_found"))
    with scripted_server({PATH: missing, "/v1/models": listing}) as server:
        report = replay(server.url(""))
    assert report["reason_code"] == "endpoint-without-model"
    assert "other-model" in findings(report, "endpoint-said")[0]["remedy"]


def test_a_path_that_is_not_there_is_not_taken_for_a_model(replay):
    with scripted_server({}) as server:
        report = replay(server.url(""))
    assert report["reason_code"] == "endpoint-refused"
    assert "check the URL" in findings(report, "endpoint-said")[0]["remedy"]


def test_where_a_text_first_differs_is_told(replay):
    state = small_state()
    for request in state.requests:
        request.output_text = "same to here, then not"
    with scripted_server({PATH: streamed(text("same to here, "), text("but", "stop"), usage(4))}) as server:
        report = replay(server.url(""), state)
    assert report["requests"][0]["text"] == {
        "as_recorded": False,
        "compared_chars": 17,
        "at": 14,
        "recorded": "same to here, then not",
        "endpoint": "same to here, but",
    }


def test_people_read_what_was_sent_and_what_came_back(replay):
    with scripted_server({PATH: CUT}) as server:
        report = replay(server.url(""), repeat=2)
        down = replay(server.url(""), failing_with("contamination"))
    rows = dict(endpoint_rows(report))
    assert rows["endpoint"] == f"{server.url('/v1')}, model smollm2-135m"
    assert rows["sent"] == "2 requests over 0 s as recorded, prompts token ids"
    assert (rows["requests"], rows["tries"]) == ("2: 2 cut", "reproduced 2 of 2")
    assert endpoint_meaning(report) == "a failure of the same kind came back, 2 of 2 times"
    assert dict(endpoint_rows(down)) == {"replayed": "nothing was sent"}
