"""httpcore and its successor httpcore2 on a recorded network: httpx, httpx2 and openai on top of them.

Their network backends, the synchronous one and that on anyio (asyncio), give streams in memory; pools, HTTP/1.1
parsers and timeouts above are the real ones, and so are the exceptions, made by the library's own mapping. Nothing of
TLS is checked, and HTTP/2 is never agreed on. Not covered: trio, unix sockets, backends of the program's own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dumps.record.seams.patches import Method, Patches
from replay.runtime.errors import UnreadableRequest
from replay.runtime.network import blocking
from replay.runtime.network.connection import ConnectFailed, Connection
from replay.runtime.network.network import Network
from replay.runtime.network.os_errors import connect_error, read_error
from replay.runtime.network.waits import passing, time_of, virtual_loop

LIBRARIES = ("httpcore", "httpcore2")


def install(network: Network) -> Callable[[], None]:
    """Let both libraries, imported or not yet, connect to ``network``; returns the way back."""
    patches = Patches()

    def follow(library: ModuleType) -> None:
        backends = library._backends
        known = patches.wrap(backends.sync.SyncBackend, "connect_tcp", lambda original: _sync_connect(network, library))
        if (on_anyio := getattr(backends, "anyio", None)) is not None:
            known &= patches.wrap(
                on_anyio.AnyIOBackend, "connect_tcp", lambda original: _async_connect(network, library)
            )
        if not known:
            network.unsupported(library.__name__)

    for name in LIBRARIES:
        patches.when_imported(name, follow)
    return patches.undo


def _sync_connect(network: Network, library: ModuleType) -> Method:
    stream_kind = _sync_stream(network, library)

    def connect_tcp(backend: Any, host: str, port: int, timeout: float | None = None, *_: Any, **__: Any) -> Any:
        with _mapped(library, {TimeoutError: library.ConnectTimeout, OSError: library.ConnectError}):
            return stream_kind(blocking.connect(network, host, port, tls=None, timeout=timeout))

    return connect_tcp


def _sync_stream(network: Network, library: ModuleType) -> type[Any]:
    """The kind of stream of ``library``: it must derive from the library's own."""

    class MemoryStream(library.NetworkStream):  # type: ignore[misc, name-defined]
        def __init__(self, connection: Connection) -> None:
            self._connection = connection

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            with _mapped(library, {TimeoutError: library.ReadTimeout, OSError: library.ReadError}):
                return blocking.receive(network, self._connection, max_bytes, timeout)

        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            blocking.refuse_in_thread(network, f"to {self._connection.host}:{self._connection.port}")
            with _mapped(library, {TimeoutError: library.WriteTimeout, OSError: library.WriteError}):
                self._connection.send(bytes(buffer))

        def close(self) -> None:
            self._connection.close()

        def start_tls(self, ssl_context: Any, server_hostname: Any = None, timeout: float | None = None) -> Any:
            with _mapped(library, {TimeoutError: library.ConnectTimeout, OSError: library.ConnectError}):
                _refuse_tls_in_tls(network, self._connection)
                try:
                    blocking.start_tls(network, self._connection, timeout)
                except Exception:
                    self.close()
                    raise
            return self

        def get_extra_info(self, info: str) -> Any:
            return _extra_info(self._connection, info)

    return MemoryStream


def _async_connect(network: Network, library: ModuleType) -> Method:
    import anyio

    stream_kind = _async_stream(network, library)

    async def connect_tcp(backend: Any, host: str, port: int, timeout: float | None = None, *_: Any, **__: Any) -> Any:
        with (
            _mapped(library, {TimeoutError: library.ConnectTimeout, OSError: library.ConnectError}),
            anyio.fail_after(timeout),
        ):
            try:
                connection = network.connect(host, port, tls=None)
            except ConnectFailed as failure:
                await time_of(network, failure)
                raise connect_error(failure) from None
            try:
                await passing(network, connection.connect_ns)
            except BaseException:
                connection.close()
                raise
        return stream_kind(connection)

    return connect_tcp


def _async_stream(network: Network, library: ModuleType) -> type[Any]:
    import anyio

    lost = (anyio.BrokenResourceError, anyio.ClosedResourceError)

    class AsyncMemoryStream(library.AsyncNetworkStream):  # type: ignore[misc, name-defined]
        def __init__(self, connection: Connection) -> None:
            self._connection = connection

        async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            with (
                _mapped(library, {TimeoutError: library.ReadTimeout, **dict.fromkeys(lost, library.ReadError)}),
                anyio.fail_after(timeout),
            ):
                return await self._receive(max_bytes)

        async def _receive(self, max_bytes: int) -> bytes:
            event = self._connection.peek()
            if event is None:
                await asyncio.get_running_loop().create_future()  # nothing comes any more
                raise AssertionError
            await virtual_loop(network).wait_until_due(event.due_ns)
            event = self._connection.take(max_bytes)
            if event.kind == "data":
                return event.data
            if event.kind == "eof":
                return b""
            raise anyio.BrokenResourceError from read_error(event)

        async def write(self, buffer: bytes, timeout: float | None = None) -> None:
            if not buffer:
                return
            with _mapped(library, {TimeoutError: library.WriteTimeout, **dict.fromkeys(lost, library.WriteError)}):
                await asyncio.sleep(0)
                try:
                    self._connection.send(bytes(buffer))
                except OSError as error:
                    raise anyio.BrokenResourceError from error

        async def aclose(self) -> None:
            self._connection.close()

        async def start_tls(self, ssl_context: Any, server_hostname: Any = None, timeout: float | None = None) -> Any:
            with _mapped(library, {TimeoutError: library.ConnectTimeout, ssl.SSLError: library.ConnectError}):
                _refuse_tls_in_tls(network, self._connection)
                failure = self._connection.handshake_failure
                if failure is not None:
                    try:
                        with anyio.fail_after(timeout):
                            await time_of(network, failure)
                    finally:
                        await self.aclose()
                    raise connect_error(failure)
                self._connection.tls = True
            return self

        def get_extra_info(self, info: str) -> Any:
            return _extra_info(self._connection, info)

    return AsyncMemoryStream


def _mapped(library: ModuleType, exceptions: dict[Any, Any]) -> Any:
    """The library's own way to turn one error into another."""
    return library._exceptions.map_exceptions(exceptions)


def _refuse_tls_in_tls(network: Network, connection: Connection) -> None:
    if connection.tls:
        raise network.refuse(UnreadableRequest(f"TLS inside TLS to {connection.host}:{connection.port}"))


def _extra_info(connection: Connection, info: str) -> Any:
    """No TLS object and no socket: there is neither."""
    if info == "server_addr":
        return connection.host, connection.port
    if info == "is_readable":
        return connection.readable
    return None
