"""http.client on a recorded network: urllib.request, urllib3 and requests on top of it.

Connections get a socket in memory; the response parser, the buffered file above the socket and everything of urllib3
above its connect are the real ones. Nothing of an HTTPS connection is checked: there is no handshake, so there is no
certificate. Unix sockets, and sockets that a program makes by itself, are not covered.
"""

from __future__ import annotations

import http.client
import io
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dumps.record.seams.patches import Method, Patches, Wrap
from replay.runtime.network import blocking
from replay.runtime.network.connection import Connection
from replay.runtime.network.network import Network


class MemorySocket:
    """As much of a socket as HTTP clients use, with the timeouts of one, on virtual time."""

    def __init__(self, network: Network, connection: Connection, timeout: float | None) -> None:
        self._network = network
        self._connection = connection
        self._timeout = timeout
        self._files = 0
        self._closed = False
        self.family, self.type, self.proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def sendall(self, data: Any, flags: int = 0) -> None:
        self._check_open()
        blocking.refuse_in_thread(self._network, f"to {self._connection.host}:{self._connection.port}")
        self._connection.send(bytes(data))

    def send(self, data: Any, flags: int = 0) -> int:
        self.sendall(data)
        return memoryview(data).nbytes

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._check_open()
        return blocking.receive(self._network, self._connection, size, self._timeout)

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        data = self.recv(size or len(view))
        view[: len(data)] = data
        return len(data)

    def makefile(self, mode: str = "r", buffering: int = -1, **_: Any) -> Any:
        """A file on this socket; for reading, the standard library's own."""
        raw = socket.SocketIO(self, "rb" if "r" in mode else "wb")  # type: ignore[arg-type]
        self._files += 1
        if buffering == 0:
            return raw
        size = buffering if buffering > 0 else io.DEFAULT_BUFFER_SIZE
        return io.BufferedReader(raw, size) if "r" in mode else io.BufferedWriter(raw, size)

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def gettimeout(self) -> float | None:
        return self._timeout

    def setblocking(self, flag: bool) -> None:
        self._timeout = None if flag else 0.0

    def setsockopt(self, *_: Any) -> None:
        """There is nothing to set."""

    def getsockopt(self, *_: Any) -> int:
        return 0

    def getpeername(self) -> tuple[str, int]:
        return self._connection.host, self._connection.port

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 0

    def fileno(self) -> int:
        """No descriptor is behind this: selecting on it fails, as on a closed socket."""
        return -1

    def shutdown(self, how: int) -> None:
        self._check_open()

    def close(self) -> None:
        self._closed = True
        if self._files <= 0:
            self._connection.close()

    @property
    def readable(self) -> bool:
        return self._connection.readable

    def _decref_socketios(self) -> None:
        self._files -= 1
        if self._closed:
            self.close()

    def _check_open(self) -> None:
        if self._closed and self._files <= 0:
            raise OSError(9, "Bad file descriptor")

    def __enter__(self) -> MemorySocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def install(network: Network) -> Callable[[], None]:
    """Let http.client and urllib3, imported or not yet, connect to ``network``; returns the way back."""
    patches = Patches()
    peer = _Peer(network)
    patches.wrap(http.client.HTTPConnection, "connect", peer.connect)
    patches.wrap(http.client.HTTPSConnection, "connect", peer.connect_tls)

    def follow(connection_module: ModuleType) -> None:
        wanted: list[tuple[ModuleType, str, Wrap]] = [
            (sys.modules["urllib3.util.connection"], "create_connection", peer.create_connection),
            (connection_module, "_ssl_wrap_socket_and_match_hostname", peer.wrap_socket),
            (connection_module, "wait_for_read", peer.wait_for_read),
        ]
        if not all(hasattr(owner, name) for owner, name, _ in wanted):
            network.unsupported("urllib3")
            return
        for owner, name, make in wanted:
            patches.wrap(owner, name, make)

    patches.when_imported("urllib3.connection", follow)
    return patches.undo


class _Peer:
    def __init__(self, network: Network) -> None:
        self._network = network

    def connect(self, original: Method) -> Method:
        def connect(connection: Any) -> None:
            self._audit(connection)
            connection.sock = self._socket(*_server(connection), connection.timeout, tls=False)

        return connect

    def connect_tls(self, original: Method) -> Method:
        def connect(connection: Any) -> None:
            self._audit(connection)
            connection.sock = self._socket(*_server(connection), connection.timeout, tls=True)

        return connect

    def create_connection(self, original: Method) -> Method:
        def create_connection(address: tuple[str, int], timeout: Any = None, **_: Any) -> Any:
            return self._socket(address[0], address[1], timeout, tls=None)

        return create_connection

    def wrap_socket(self, original: Method) -> Method:
        def wrap_socket(sock: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(sock, MemorySocket):
                return original(sock, *args, **kwargs)
            blocking.start_tls(self._network, sock._connection, sock.gettimeout())
            module = sys.modules["urllib3.connection"]
            return module._WrappedAndVerifiedSocket(socket=sock, is_verified=True)

        return wrap_socket

    def wait_for_read(self, original: Method) -> Method:
        def wait_for_read(sock: Any, timeout: float | None = None) -> bool:
            if isinstance(sock, MemorySocket):
                return sock.readable
            return bool(original(sock, timeout))

        return wait_for_read

    def _socket(self, host: str, port: int, timeout: Any, *, tls: bool | None) -> MemorySocket:
        if not (timeout is None or isinstance(timeout, int | float)):
            timeout = socket.getdefaulttimeout()  # the sentinels of http.client and urllib3 mean this one
        connection = blocking.connect(self._network, host.strip("[]"), port, tls=tls, timeout=timeout)
        return MemorySocket(self._network, connection, timeout)

    @staticmethod
    def _audit(connection: Any) -> None:
        sys.audit("http.client.connect", connection, connection.host, connection.port)


def _server(connection: Any) -> tuple[str, int]:
    """The server asked for. Behind a proxy's tunnel too: what is said to the proxy is not recorded."""
    if connection._tunnel_host:
        return connection._tunnel_host, connection._tunnel_port
    return connection.host, connection.port
