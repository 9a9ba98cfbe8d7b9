"""aiohttp's client on a recorded network.

The connector makes a transport in memory; the protocol, its parsers, the pool, redirects and timeouts above it are the
real ones. The method is replaced on the class, so sessions made before are covered too. Nothing of TLS is checked:
there is no handshake, so there is no certificate and no fingerprint. Not covered: unix sockets, named pipes, connectors
of the program's own that do not derive from TCPConnector.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from dumps.record.seams.http_tap import Asker
from dumps.record.seams.patches import Method, Patches
from replay.runtime.errors import RuntimeReplayError
from replay.runtime.network.connection import ConnectFailed, Connection
from replay.runtime.network.network import Network
from replay.runtime.network.os_errors import connect_error, read_error
from replay.runtime.network.waits import passing, time_of, virtual_loop
from replay.runtime.virtual_loop import VirtualLoop


class MemoryTransport(asyncio.Transport):
    """A transport whose peer is a `Connection`. What it reads is given to the protocol when it is due, a piece in one
    pass of the loop, as a socket's would be."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext | None) -> None:
        super().__init__({"peername": (connection.host, connection.port), "sslcontext": context})
        self.connection = connection
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self._protocol: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        try:
            self.connection.send(bytes(data))
        except Exception as error:
            # Raised here it would reach aiohttp's task that writes, which tells of a failed write and not of this.
            self._lose(error)
        else:
            self._schedule()

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(pieces))

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._lose(None)

    def abort(self) -> None:
        self.close()

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        self._paused = True
        self._stop_timer()

    def resume_reading(self) -> None:
        self._paused = False
        self._schedule()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def _schedule(self) -> None:
        event = self.connection.peek()
        if event is None or self._timer is not None or not self.is_reading():
            return
        self._timer = self._loop.call_when_due(event.due_ns, self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        if not self.is_reading():
            return
        assert self._protocol is not None
        try:
            event = self.connection.take()
        except RuntimeReplayError as error:
            self._lose(error)
            return
        if event.kind == "data":
            self._protocol.data_received(event.data)
            self._schedule()
        elif event.kind != "eof":
            self._lose(read_error(event))
        elif not self._protocol.eof_received():
            self.close()

    def _lose(self, error: Exception | None) -> None:
        self._closing = True
        self._stop_timer()
        self.connection.close()
        assert self._protocol is not None
        self._loop.call_soon(self._protocol.connection_lost, error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def install(network: Network) -> Callable[[], None]:
    """Let aiohttp, imported or not yet, connect to ``network``; returns the way back."""
    patches = Patches()

    def follow(library: ModuleType) -> None:
        peer = _Peer(network, library)
        connector = library.connector
        if not patches.wrap(connector.TCPConnector, "_create_connection", peer.create_connection):
            network.unsupported("aiohttp")
        patches.wrap(connector.BaseConnector, "connect", peer.connect)

    patches.when_imported("aiohttp", follow)
    return patches.undo


class _Peer:
    def __init__(self, network: Network, library: ModuleType) -> None:
        self._network = network
        self._aiohttp = library

    def connect(self, original: Method) -> Method:
        """Requests are written from a task of aiohttp's own, so who asks is noted where a connection is taken."""

        async def connect(connector: Any, *args: Any, **kwargs: Any) -> Any:
            taken = await original(connector, *args, **kwargs)
            transport = getattr(taken.protocol, "transport", None)
            if isinstance(transport, MemoryTransport):
                transport.connection.asker = Asker.here()
            return taken

        return connect

    def create_connection(self, original: Method) -> Method:
        async def create_connection(connector: Any, request: Any, traces: Any, timeout: Any) -> Any:
            loop = virtual_loop(self._network)
            context = connector._get_ssl_context(request)
            async with self._aiohttp.helpers.ceil_timeout(timeout.sock_connect, ceil_threshold=timeout.ceil_threshold):
                connection = await self._connected(request, tls=context is not None)
            transport = MemoryTransport(connection, loop, context)
            protocol = connector._factory()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            return protocol

        return create_connection

    async def _connected(self, request: Any, *, tls: bool) -> Connection:
        try:
            connection = self._network.connect(request.url.raw_host or "", request.url.port or 0, tls=tls)
        except ConnectFailed as failure:
            await time_of(self._network, failure)
            raise self._error(failure, request) from connect_error(failure, numbered=True)
        try:
            await passing(self._network, connection.connect_ns)
        except BaseException:
            connection.close()
            raise
        return connection

    def _error(self, failure: ConnectFailed, request: Any) -> Exception:
        """What the connector raises around the system's error."""
        errors = self._aiohttp.client_exceptions
        cause = connect_error(failure, numbered=True)
        if isinstance(cause, ssl.CertificateError):
            kind = errors.ClientConnectorCertificateError
        elif isinstance(cause, ssl.SSLError):
            kind = errors.ClientConnectorSSLError
        elif failure.kind == "dns":
            kind = errors.ClientConnectorDNSError
        else:
            kind = errors.ClientProxyConnectionError if request.proxy else errors.ClientConnectorError
        error: Exception = kind(request.connection_key, cause)
        return error
