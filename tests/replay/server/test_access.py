"""Who gets in: token, Host and Origin."""

from __future__ import annotations

import socket

import aiohttp
import pytest

from tests.replay.server.server_process import Server

Client = aiohttp.ClientSession
GUARDED = ["/debug/replay", "/metrics", "/debug/replay/00000000000000aa", "/nothing"]


def raw(server: Server, request: str) -> str:
    """The answer to bytes that no client library would send."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request.encode("latin-1"))
        answer = b""
        while data := connection.recv(65536):
            answer += data
    return answer.decode("latin-1")


def status(answer: str) -> int:
    return int(answer.split(" ", 2)[1])


async def test_health_needs_no_token(server: Server, client: Client) -> None:
    async with client.get(f"{server.url}/healthz") as answer:
        assert answer.status == 200
        assert await answer.json() == {"status": "ok"}


@pytest.mark.parametrize("path", GUARDED)
async def test_everything_else_needs_the_token(server: Server, client: Client, path: str) -> None:
    async with client.get(server.url + path) as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert (await answer.json())["error"]["remedy"]


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic {token}", "{token}", "Bearer {token}x", "Bearer {short}",
     "Bearer \xff\xfe", "Bearer {token} {token}"],
)  # fmt: skip
async def test_a_wrong_token_is_refused(server: Server, value: str) -> None:
    header = value.format(token=server.token, short=server.token[:-1])
    answer = raw(
        server,
        f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: {header}\r\nConnection: close\r\n\r\n",
    )
    assert status(answer) == 401, answer


def test_two_tokens_are_refused_although_one_is_right(server: Server) -> None:
    line = f"Authorization: Bearer {server.token}\r\n"
    answer = raw(server, f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{line}{line}Connection: close\r\n\r\n")
    assert status(answer) == 401


async def test_a_token_in_the_query_does_not_count(server: Server, client: Client) -> None:
    async with client.get(f"{server.url}/metrics", params={"token": server.token}) as answer:
        assert answer.status == 401


async def test_an_upload_without_token_is_refused_before_it_is_read(server: Server, client: Client) -> None:
    async with client.post(f"{server.url}/debug/replay", data=b"PPLX") as answer:
        assert answer.status == 401


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:80", 200),
        ("127.8.8.8", 200),
        ("localhost:9", 200),
        ("LOCALHOST", 200),
        ("[::1]:8081", 200),
        ("rebound.example.com", 403),
        ("127.0.0.1.example.com", 403),
        ("localhost.example.com:8081", 403),
        ("0.0.0.0", 403),
        ("10.0.0.1", 403),
        ("[::2]", 403),
        ("localhost:8081@example.com", 403),
        ("localhost, example.com", 403),
        ("127.0.0.1:port", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_host_must_mean_this_machine(server: Server, path: str, host: str, expected: int) -> None:
    answer = raw(
        server,
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {server.token}\r\nConnection: close\r\n\r\n",
    )
    assert status(answer) == expected, answer


@pytest.mark.parametrize(
    "head",
    [
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: example.com\r\n",
        "GET /healthz HTTP/1.1\r\n",
        "GET /healthz HTTP/1.0\r\n",  # aiohttp itself refuses the ones above, but not this
        "GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n",
        "GET http://example.com/healthz HTTP/1.1\r\nHost: localhost\r\n",
    ],
)
def test_a_request_has_one_host_and_a_path(server: Server, head: str) -> None:
    assert status(raw(server, f"{head}Connection: close\r\n\r\n")) == 400


@pytest.mark.parametrize(
    "origin",
    [
        "https://example.com",
        "null",
        "http://127.0.0.1:1",
        "https://127.0.0.1:{port}",
        "http://localhost:{port}",
        "file://",
    ],
)
async def test_a_foreign_origin_is_refused(server: Server, client: Client, origin: str) -> None:
    headers = {**server.headers, "Origin": origin.format(port=server.port)}
    async with client.post(f"{server.url}/debug/replay", headers=headers, json={"dump": "0" * 16}) as answer:
        assert answer.status == 403
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_its_own_origin_is_not_foreign(server: Server, client: Client) -> None:
    async with client.get(f"{server.url}/metrics", headers={**server.headers, "Origin": server.url}) as answer:
        assert answer.status == 200


async def test_a_form_of_another_site_is_refused(server: Server, client: Client) -> None:
    headers = {**server.headers, "Sec-Fetch-Site": "cross-site"}
    async with client.get(f"{server.url}/metrics", headers=headers) as answer:
        assert answer.status == 403


async def test_a_preflight_gets_no_permission(server: Server, client: Client) -> None:
    headers = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    async with client.options(f"{server.url}/debug/replay", headers=headers) as answer:
        assert answer.status == 403
        assert not any(name.startswith("Access-Control") for name in answer.headers)


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/debug/replay", "/nothing"])
async def test_every_answer_has_the_security_headers(server: Server, client: Client, path: str) -> None:
    async with client.get(server.url + path, headers=server.headers) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "aiohttp" not in answer.headers["Server"]


async def test_get_takes_no_replay_and_other_methods_are_refused(server: Server, client: Client) -> None:
    for method in ("PUT", "DELETE", "PATCH"):
        async with client.request(method, f"{server.url}/debug/replay", headers=server.headers) as answer:
            assert answer.status == 405
            assert "POST" in answer.headers["Allow"]
