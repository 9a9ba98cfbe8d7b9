"""A server on the loopback that says what it is told to, byte for byte, and how to record it through a plain socket."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dumps.schema import state_pb2 as pb

End = Literal["keep", "close", "reset", "silence"]
PAUSE = 0.03
"""Seconds between two pieces: long enough that the kernel does not join them, if the machine is not too busy."""


@dataclass(frozen=True, slots=True)
class Script:
    """What one request gets: pieces, each sent on its own, then the end."""

    pieces: Sequence[bytes]
    end: End = "keep"
    first: bool = False
    """The server talks first, and reads nothing."""


class Loopback:
    """Serves one script after another, over any number of connections; the last one for good. Keeps what was asked."""

    def __init__(self, *scripts: Script, pause: float = PAUSE) -> None:
        self._scripts = list(scripts)
        self._pause = pause
        self.requests: list[bytes] = []
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, name="loopback", daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), name="loopback", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(0.1)
        with connection:
            while True:
                request = b"" if self._scripts[0].first else self._read_request(connection)
                if request is None:
                    return
                self.requests.append(request)
                script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
                with contextlib.suppress(OSError):
                    for piece in script.pieces:
                        time.sleep(self._pause)
                        connection.sendall(piece)
                    time.sleep(self._pause)
                if script.end == "reset":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if script.end == "silence":
                    self._stopped.wait(20)
                if script.end != "keep":
                    return

    def _read_request(self, connection: socket.socket) -> bytes | None:
        data = b""
        while not self._stopped.is_set():
            try:
                more = connection.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return None
            if not more:
                return None
            data += more
            head, blank, body = data.partition(b"\r\n\r\n")
            named = {name.lower(): value for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))}
            chunked = b"chunked" in named.get(b"transfer-encoding", b"")
            if blank and (
                body.endswith(b"0\r\n\r\n") if chunked else len(body) >= int(named.get(b"content-length", b"0"))
            ):
                return data
        return None


def captured(url: str, *, script: Script, method: str = "GET", body: bytes = b"") -> pb.Exchange:
    """The exchange of one request to a server of ``script``, as a plain socket saw it."""
    host, _, port = url.split("/")[2].partition(":")
    exchange = pb.Exchange(id="x1", method=method, url=url, request_body=body, direction="out", framing="wire")
    exchange.task = "MainThread"
    path = "/" + "/".join(url.split("/")[3:])
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", f"Content-Length: {len(body)}", "", ""]
    exchange.started_ns = time.monotonic_ns()
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        exchange.connect_ns = time.monotonic_ns() - exchange.started_ns
        connection.sendall("\r\n".join(lines).encode() + body)
        exchange.sent_ns = last = time.monotonic_ns()
        try:
            for data in _reads(connection, b"".join(script.pieces), script.end):
                now = time.monotonic_ns()
                exchange.chunks.add(data=data, size=len(data), delay_ns=now - last)
                last = now
            if script.end == "silence":
                return exchange
            if script.end == "close":
                exchange.error = "" if _ended(exchange, method) else "closed"
        except ConnectionResetError as error:
            exchange.error, exchange.error_message = "reset", str(error)
    exchange.ended_ns = time.monotonic_ns()
    head = b"".join(chunk.data for chunk in exchange.chunks).partition(b"\r\n\r\n")[0].split(b"\r\n")
    with contextlib.suppress(IndexError, ValueError):
        exchange.status = int(head[0].split()[1])
    for line in head[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        exchange.response_headers.add(key=name, value=value.strip())
    return exchange


def _reads(connection: socket.socket, expected: bytes, end: End) -> Iterator[bytes]:
    seen = 0
    while end in ("close", "reset") or seen < len(expected):
        data = connection.recv(65536)
        if not data:
            return
        seen += len(data)
        yield data


def _ended(exchange: pb.Exchange, method: str) -> bool:
    """Whether the response had all of its bytes when the peer closed."""
    head, blank, body = b"".join(chunk.data for chunk in exchange.chunks).partition(b"\r\n\r\n")
    if not blank:
        return False
    lowered = head.lower()
    if b"chunked" in lowered:
        return body.endswith(b"0\r\n\r\n")
    _, found, rest = lowered.partition(b"content-length:")
    return not found or len(body) >= int(rest.split(b"\r\n")[0])
