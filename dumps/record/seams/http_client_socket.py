"""Records what the standard library's http.client does on its sockets: urllib.request, urllib3 and requests use it.

Sockets are left alone: what goes to one is seen where a connection sends, what comes from one where the file object
that `HTTPResponse` made of it reads, one read of the socket at a time. So a TLS socket is seen decrypted, and whoever
waits for a socket or asks for its number meets the socket itself.

Through a proxy the exchange is that with the server behind it; what was said to the proxy for a tunnel is left out.
Not followed: connections opened before the recording, and code that takes the socket out of a connection.
"""

from __future__ import annotations

import http.client
import io
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakSet

from dumps.record.seams.failures import told_to
from dumps.record.seams.http_tap import HttpTap
from dumps.record.seams.log import WorldLog
from dumps.record.seams.patches import Method
from dumps.record.seams.taps import ClientSeam, new_tap


def install(log: WorldLog) -> Callable[[], None]:
    """Follow http.client, and urllib3's connections imported or not yet; returns what takes the wrappers away."""
    seam = _Seam(log)
    seam.follow_libraries()
    return seam.end


class _Seam(ClientSeam):
    """Taps go by connection, and by its socket."""

    def __init__(self, log: WorldLog) -> None:
        super().__init__(log)
        self._answering: WeakSet[HttpTap] = WeakSet()  # a response holds its socket open
        self._connecting = threading.local()  # one connect calls another: HTTPSConnection its HTTPConnection

    def follow_libraries(self) -> None:
        self._follow_connections(http.client)
        self._follow_http_client()
        self._patches.when_imported("urllib3.connection", self._follow_connections)

    def _follow_connections(self, module: ModuleType) -> None:
        """The two kinds of connection in http.client, or those of urllib3 which derive from them."""
        for name in ("HTTPConnection", "HTTPSConnection"):
            kind = getattr(module, name, None)
            if not self._ended and kind is not None and "connect" in vars(kind):
                self._patches.wrap(kind, "connect", self._connect)

    def _follow_http_client(self) -> None:
        self._patches.wrap(http.client.HTTPConnection, "send", self._send)
        self._patches.wrap(http.client.HTTPConnection, "close", self._close)
        self._patches.wrap(http.client.HTTPResponse, "__init__", self._response)

    def _connect(self, connect: Method) -> Method:
        def wrapper(connection: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._connecting, "connection", None) is connection:
                return connect(connection, *args, **kwargs)
            tap = self._new_tap(connection)
            self._connecting.connection = connection
            tap.connecting()
            try:
                with told_to(tap.connect_raised):
                    done = connect(connection, *args, **kwargs)
            finally:
                self._connecting.connection = None
            tap.connected()
            if not self._ended and connection.sock is not None:
                self._taps.put(connection, tap)
                self._taps.put(connection.sock, tap)
            return done

        return wrapper

    def _send(self, send: Method) -> Method:
        def wrapper(connection: Any, data: Any) -> Any:
            if connection.sock is None and connection.auto_open:
                connection.connect()  # as the original would, but before it is asked who follows this connection
            tap = self._taps.get(connection)
            if tap is None or connection.sock is None or self._taps.get(connection.sock) is not tap:
                return send(connection, data)
            with told_to(tap.write_raised):
                done = send(connection, _heard(data, tap))
            tap.flushed()
            return done

        return wrapper

    def _close(self, close: Method) -> Method:
        def wrapper(connection: Any) -> Any:
            tap = self._taps.drop(connection)
            if tap is not None and tap not in self._answering:  # else the response goes on reading
                tap.closed()
            return close(connection)

        return wrapper

    def _response(self, init: Method) -> Method:
        def wrapper(response: Any, sock: Any, *args: Any, **kwargs: Any) -> None:
            init(response, sock, *args, **kwargs)
            tap, raw = self._taps.get(sock), getattr(response.fp, "raw", None)
            if tap is not None and raw is not None:
                self._follow_file(raw, tap)

        return wrapper

    def _follow_file(self, raw: Any, tap: HttpTap) -> None:
        """``raw`` is the unbuffered file of a socket: it is read when the buffer above it is empty."""
        readinto, close = raw.readinto, raw.close

        def heard_readinto(buffer: Any) -> Any:
            with told_to(tap.raised):
                count = readinto(buffer)
            if count is not None and not self._ended:
                tap.was_read(memoryview(buffer)[:count])
            return count

        def heard_close() -> None:
            self._answering.discard(tap)
            if not self._ended:
                tap.closed()
            close()

        raw.readinto, raw.close = heard_readinto, heard_close
        self._answering.add(tap)

    def _new_tap(self, connection: Any) -> HttpTap:
        def address() -> tuple[str, str, int]:
            scheme = "https" if connection.default_port == http.client.HTTPS_PORT else "http"
            if connection._tunnel_host:
                return scheme, connection._tunnel_host, int(connection._tunnel_port)
            return scheme, connection.host, int(connection.port)

        return new_tap(self._log, "http.client", address)


def _heard(data: Any, tap: HttpTap) -> Any:
    """``data`` as `HTTPConnection.send` takes it, with the tap told of its bytes as they are taken."""
    if hasattr(data, "read"):
        return _HeardFile(data, tap)
    try:
        memoryview(data)
    except TypeError:
        return _heard_each(data, tap) if isinstance(data, Iterable) and not isinstance(data, str) else data
    tap.sent(data)
    return data


class _HeardFile:
    """A file that is sent. Text is encoded here as http.client would."""

    def __init__(self, file: Any, tap: HttpTap) -> None:
        self._file, self._tap = file, tap

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if isinstance(self._file, io.TextIOBase):
            data = data.encode("iso-8859-1")
        if data:
            self._tap.sent(data)
        return data  # type: ignore[no-any-return]


def _heard_each(pieces: Iterable[Any], tap: HttpTap) -> Iterator[Any]:
    for piece in pieces:
        tap.sent(piece)
        yield piece
