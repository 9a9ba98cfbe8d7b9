"""Records what httpcore and its successor httpcore2 do, below their parsers: httpx, httpx2 and openai use them.

Their own network backends and streams are followed, the synchronous ones and those on anyio (asyncio). The methods of
the classes are wrapped, so that pools made before a recording are followed too, and streams stay what they are; a
connection that was opened before is not. The stream above TLS is the one that is read, so bytes are recorded decrypted.

Not followed: the trio backend, backends of the program's own, unix sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dumps.record.seams.failures import told_to
from dumps.record.seams.http_tap import HttpTap
from dumps.record.seams.log import WorldLog
from dumps.record.seams.patches import Method, Wrap
from dumps.record.seams.taps import ClientSeam, new_tap

LIBRARIES = ("httpcore", "httpcore2")


def install(log: WorldLog) -> Callable[[], None]:
    """Follow both libraries, imported or not yet; returns what ends that and takes the wrappers away."""
    seam = _Seam(log)
    seam.follow_libraries()
    return seam.end


class _Seam(ClientSeam):
    """Taps go by stream."""

    def follow_libraries(self) -> None:
        for name in LIBRARIES:
            self._patches.when_imported(name, self._follow)

    def _follow(self, library: ModuleType) -> None:
        if self._ended:
            return
        backends = library._backends
        wanted: list[tuple[Any, str, Wrap]] = [
            (backends.sync.SyncBackend, "connect_tcp", self._connect),
            (backends.sync.SyncStream, "start_tls", self._start_tls),
        ]
        for stream in (backends.sync.SyncStream, backends.sync.TLSinTLSStream):
            wanted += [(stream, "read", self._read), (stream, "write", self._write), (stream, "close", self._close)]
        if (on_anyio := getattr(backends, "anyio", None)) is not None:
            wanted += [
                (on_anyio.AnyIOBackend, "connect_tcp", self._connect_async),
                (on_anyio.AnyIOStream, "start_tls", self._start_tls_async),
                (on_anyio.AnyIOStream, "read", self._read_async),
                (on_anyio.AnyIOStream, "write", self._write_async),
                (on_anyio.AnyIOStream, "aclose", self._close_async),
            ]
        if not self._patches.wrap_all(wanted):
            self._log.lost[f"unknown version of {library.__name__}"] += 1

    def _connect(self, connect_tcp: Method) -> Method:
        def wrapper(backend: Any, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            tap = self._new_tap(host, port)
            with told_to(tap.connect_raised):
                stream = connect_tcp(backend, host, port, *args, **kwargs)
            return self._connected(tap, stream)

        return wrapper

    def _connect_async(self, connect_tcp: Method) -> Method:
        async def wrapper(backend: Any, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            tap = self._new_tap(host, port, in_turns=True)
            with told_to(tap.connect_raised):
                stream = await connect_tcp(backend, host, port, *args, **kwargs)
            return self._connected(tap, stream)

        return wrapper

    def _start_tls(self, start_tls: Method) -> Method:
        def wrapper(stream: Any, *args: Any, **kwargs: Any) -> Any:
            if (tap := self._securing(stream)) is None:
                return start_tls(stream, *args, **kwargs)
            with told_to(tap.tls_raised):
                secured = start_tls(stream, *args, **kwargs)
            return self._connected(tap, secured)

        return wrapper

    def _start_tls_async(self, start_tls: Method) -> Method:
        async def wrapper(stream: Any, *args: Any, **kwargs: Any) -> Any:
            if (tap := self._securing(stream)) is None:
                return await start_tls(stream, *args, **kwargs)
            with told_to(tap.tls_raised):
                secured = await start_tls(stream, *args, **kwargs)
            return self._connected(tap, secured)

        return wrapper

    def _read(self, read: Method) -> Method:
        def wrapper(stream: Any, *args: Any, **kwargs: Any) -> Any:
            if (tap := self._taps.get(stream)) is None:
                return read(stream, *args, **kwargs)
            with told_to(tap.raised):
                data = read(stream, *args, **kwargs)
            tap.was_read(data)
            return data

        return wrapper

    def _read_async(self, read: Method) -> Method:
        async def wrapper(stream: Any, *args: Any, **kwargs: Any) -> Any:
            if (tap := self._taps.get(stream)) is None:
                return await read(stream, *args, **kwargs)
            with told_to(tap.raised):
                data = await read(stream, *args, **kwargs)
            tap.was_read(data)
            return data

        return wrapper

    def _write(self, write: Method) -> Method:
        def wrapper(stream: Any, buffer: Any, *args: Any, **kwargs: Any) -> Any:
            if (tap := self._taps.get(stream)) is None:
                return write(stream, buffer, *args, **kwargs)
            tap.sent(buffer)
            with told_to(tap.write_raised):
                done = write(stream, buffer, *args, **kwargs)
            tap.flushed()
            return done

        return wrapper

    def _write_async(self, write: Method) -> Method:
        async def wrapper(stream: Any, buffer: Any, *args: Any, **kwargs: Any) -> Any:
            if (tap := self._taps.get(stream)) is None:
                return await write(stream, buffer, *args, **kwargs)
            tap.sent(buffer)
            with told_to(tap.write_raised):
                done = await write(stream, buffer, *args, **kwargs)
            tap.flushed()
            return done

        return wrapper

    def _close(self, close: Method) -> Method:
        def wrapper(stream: Any, *args: Any, **kwargs: Any) -> Any:
            if tap := self._taps.get(stream):
                tap.closed()
            return close(stream, *args, **kwargs)

        return wrapper

    _close_async = _close  # what it returns is awaited by the caller

    def _new_tap(self, host: Any, port: Any, *, in_turns: bool = False) -> HttpTap:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
        tap = new_tap(self._log, "httpcore", lambda: ("http", name, int(port)), in_turns=in_turns)
        tap.connecting()
        return tap

    def _securing(self, stream: Any) -> HttpTap | None:
        """The tap for ``stream`` with TLS on it: a new one at the far end of a proxy's tunnel."""
        tap = self._taps.get(stream)
        if tap is not None and tap.tunnel is not None:
            tap = self._new_tap(*tap.tunnel, in_turns=tap.in_turns)
        if tap is not None:
            tap.securing()
        return tap

    def _connected(self, tap: HttpTap, stream: Any) -> Any:
        tap.connected()
        if not self._ended:
            self._taps.put(stream, tap)
        return stream
