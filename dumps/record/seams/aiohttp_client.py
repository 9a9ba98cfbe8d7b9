"""Records what aiohttp's client does, below its parser.

The protocol of a TCP connection is followed (what the transport gives it, how the connection ends) and the writer of
requests, by wrapping methods of their classes: this holds on any event loop, TLS bytes are seen decrypted, and the
protocols and transports stay what they are. Requests are written from a task of aiohttp's own, so who asks is noted
where the program's task takes its connection.

Through a proxy the exchange is that with the server behind it; what was said to the proxy for a tunnel is left out.
Not followed: unix sockets, named pipes, web sockets after their handshake, connections opened before the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from dumps.record.seams.http_tap import Asker, HttpTap
from dumps.record.seams.log import WorldLog
from dumps.record.seams.patches import Method, Wrap
from dumps.record.seams.taps import ClientSeam, new_tap


@dataclass(slots=True)
class _Attempt:
    """A task that takes a connection. ``tap`` is that of a new one, as soon as it is asked for."""

    asker: Asker
    tap: HttpTap | None = None


_attempt: ContextVar[_Attempt | None] = ContextVar("attempt", default=None)


def install(log: WorldLog) -> Callable[[], None]:
    """Follow aiohttp's client, imported or not yet; returns what ends that and takes the wrappers away."""
    seam = _Seam(log)
    seam.follow_library()
    return seam.end


class _Seam(ClientSeam):
    """Taps go by protocol."""

    def __init__(self, log: WorldLog) -> None:
        super().__init__(log)
        self._fed_again: set[int] = set()  # protocols that hand themselves what they had put aside

    def follow_library(self) -> None:
        self._patches.when_imported("aiohttp", self._follow)

    def _follow(self, library: ModuleType) -> None:
        if self._ended:
            return
        protocol, writer = library.client_proto.ResponseHandler, library.http_writer.StreamWriter
        wanted: list[tuple[Any, str, Wrap]] = [
            (library.connector.BaseConnector, "connect", self._connect),
            (library.connector.TCPConnector, "_create_connection", self._create_connection),
            (protocol, "data_received", self._data_received),
            (protocol, "connection_lost", self._connection_lost),
            (protocol, "close", self._closing),
            (protocol, "_on_read_timeout", self._on_read_timeout),
            (writer, "_write", self._write),
            (writer, "_writelines", self._writelines),
        ]
        if not self._patches.wrap_all(wanted):
            self._log.lost["unknown version of aiohttp"] += 1
        self._patches.wrap(protocol, "abort", self._closing)  # these two came later
        self._patches.wrap(protocol, "_drain_tail", self._drain_tail)

    def _connect(self, connect: Method) -> Method:
        async def wrapper(connector: Any, *args: Any, **kwargs: Any) -> Any:
            attempt = _Attempt(Asker.here())
            token = _attempt.set(attempt)
            try:
                connection = await connect(connector, *args, **kwargs)
            except BaseException as error:
                if attempt.tap is not None:
                    attempt.tap.connect_raised(error)
                raise
            finally:
                _attempt.reset(token)
            tap = self._taps.get(getattr(connection, "protocol", None))
            if tap is not None:
                tap.asked_by(attempt.asker)
            return connection

        return wrapper

    def _create_connection(self, create: Method) -> Method:
        async def wrapper(connector: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            tap, attempt = self._new_tap(request), _attempt.get()
            if attempt is not None:
                attempt.tap = tap
                tap.asked_by(attempt.asker)
            tap.connecting()
            protocol = await create(connector, request, *args, **kwargs)
            tap.connected()
            if not self._ended:
                self._taps.put(protocol, tap)
            return protocol

        return wrapper

    def _data_received(self, data_received: Method) -> Method:
        def wrapper(protocol: Any, data: Any) -> Any:
            if data and (tap := self._taps.get(protocol)) is not None and id(protocol) not in self._fed_again:
                tap.received(data)
            return data_received(protocol, data)

        return wrapper

    def _drain_tail(self, drain_tail: Method) -> Method:
        def wrapper(protocol: Any) -> Any:
            self._fed_again.add(id(protocol))
            try:
                return drain_tail(protocol)
            finally:
                self._fed_again.discard(id(protocol))

        return wrapper

    def _connection_lost(self, connection_lost: Method) -> Method:
        def wrapper(protocol: Any, error: BaseException | None) -> Any:
            if (tap := self._taps.get(protocol)) is not None:
                if error is None:  # where this program closed it, `_closing` came first
                    tap.peer_closed()
                else:
                    tap.raised(error)
            return connection_lost(protocol, error)

        return wrapper

    def _closing(self, close: Method) -> Method:
        def wrapper(protocol: Any) -> Any:
            if (tap := self._taps.get(protocol)) is not None:
                tap.closed()
            return close(protocol)

        return wrapper

    def _on_read_timeout(self, on_read_timeout: Method) -> Method:
        def wrapper(protocol: Any) -> Any:
            if (tap := self._taps.get(protocol)) is not None:
                tap.failed("timeout", "Timeout on reading data from socket")
            return on_read_timeout(protocol)

        return wrapper

    def _write(self, write: Method) -> Method:
        def wrapper(writer: Any, chunk: Any) -> Any:
            done = write(writer, chunk)  # first: it raises where the connection is gone, and nothing can answer yet
            if (tap := self._taps.get(getattr(writer, "_protocol", None))) is not None:
                tap.sent(chunk)
            return done

        return wrapper

    def _writelines(self, writelines: Method) -> Method:
        def wrapper(writer: Any, chunks: Iterable[Any]) -> Any:
            tap = self._taps.get(getattr(writer, "_protocol", None))
            if tap is None:
                return writelines(writer, chunks)
            chunks = list(chunks)
            done = writelines(writer, chunks)
            tap.sent(b"".join(chunks))
            return done

        return wrapper

    def _new_tap(self, request: Any) -> HttpTap:
        def address() -> tuple[str, str, int]:
            return request.url.scheme, request.url.raw_host, request.url.port

        return new_tap(self._log, "aiohttp", address, in_turns=True)
