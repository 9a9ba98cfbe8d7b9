"""A raw HTTP server on the loopback, with or without TLS, that plays a script by path: pieces, pauses, an end."""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import h11

Step = bytes | float | str
"""Bytes to send at once, seconds to wait, or the connection's end: "close", "reset", "hang" (until the client goes)."""

PIECE_S = 0.03  # between two pieces, so that the client reads them one by one
NOT_FOUND: Sequence[Step] = [b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"]


@dataclass(slots=True)
class ScriptedServer:
    """``requests`` are those that arrived: method, target and body."""

    port: int
    scheme: str = "http"
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)

    def url(self, path: str) -> str:
        return f"{self.scheme}://localhost:{self.port}{path}"


def pieces(*data: bytes) -> list[Step]:
    """Steps that send these one by one."""
    steps: list[Step] = []
    for piece in data:
        steps += [piece, PIECE_S]
    return steps[:-1]


def cut_as_sent(sizes: Sequence[int], sent: Sequence[bytes]) -> bool:
    """Whether reads of these ``sizes`` ended where pieces did. On a busy machine one read may get two of them."""
    ends = set(itertools.accumulate(map(len, sent)))
    return set(itertools.accumulate(sizes)) <= ends and len(sizes) > len(sent) // 2


@contextmanager
def scripted_server(
    scripts: Mapping[str, Sequence[Step]], tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    """Serve ``scripts`` by path (without query) until the block is left; 404 for a path that has none."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = ScriptedServer(listener.getsockname()[1], "https" if tls else "http")
        threads: list[threading.Thread] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                thread = threading.Thread(target=_serve, args=(connection, tls, scripts, server.requests, stopped))
                threads.append(thread)
                thread.start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield server
        finally:
            stopped.set()
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for thread in threads:
                thread.join()


def _serve(
    connection: socket.socket,
    tls: ssl.SSLContext | None,
    scripts: Mapping[str, Sequence[Step]],
    requests: list[tuple[str, str, bytes]],
    stopped: threading.Event,
) -> None:
    with connection, suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(5)
        talking = connection if tls is None else tls.wrap_socket(connection, server_side=True)
        with talking:
            talking.settimeout(0.05)
            while (request := _read_request(talking, stopped)) is not None:
                requests.append(request)
                for step in scripts.get(request[1].partition("?")[0], NOT_FOUND):
                    if not _play(step, talking, stopped):
                        return


def _play(step: Step, connection: socket.socket, stopped: threading.Event) -> bool:
    """Whether the connection goes on."""
    if isinstance(step, bytes):
        connection.sendall(step)
        return True
    if isinstance(step, float):
        stopped.wait(step)
        return True
    if step == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    while step == "hang" and not stopped.is_set():
        with suppress(TimeoutError):
            if not connection.recv(1):
                break
    return False


def _read_request(connection: socket.socket, stopped: threading.Event) -> tuple[str, str, bytes] | None:
    parser = h11.Connection(h11.SERVER)
    method, target, body = "", "", b""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            try:
                parser.receive_data(connection.recv(65536))
            except TimeoutError:
                if stopped.is_set():
                    return None
        elif isinstance(event, h11.Request):
            method, target = event.method.decode(), event.target.decode()
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return method, target, body
        else:
            return None
