"""Blocking waits of synchronous clients on virtual time, with the timeouts of sockets."""

from __future__ import annotations

import threading
from typing import NoReturn

from replay.runtime.clock import NS
from replay.runtime.errors import SyncClientInThread, WaitsForEver
from replay.runtime.network.connection import ConnectFailed, Connection
from replay.runtime.network.network import Network
from replay.runtime.network.os_errors import connect_error, read_error


def connect(network: Network, host: str, port: int, *, tls: bool | None, timeout: float | None) -> Connection:
    """Connect as a socket with that timeout in seconds would. Raises the OSError of the recorded failure, TimeoutError,
    SyncClientInThread, or WaitsForEver."""
    refuse_in_thread(network, f"to {host}:{port}")
    where = f"connecting to {host}:{port}"
    try:
        connection = network.connect(host, port, tls=tls)
    except ConnectFailed as failure:
        _fail(network, failure, timeout, where)
    try:
        wait(network, connection.connect_ns, timeout, where)
    except BaseException:
        connection.close()
        raise
    return connection


def start_tls(network: Network, connection: Connection, timeout: float | None) -> None:
    """The handshake on a connection made with ``tls`` None. Raises ssl.SSLError as recorded, TimeoutError."""
    failure = connection.handshake_failure
    if failure is not None:
        _fail(network, failure, timeout, f"the TLS handshake with {connection.host}:{connection.port}")
    connection.tls = True


def receive(network: Network, connection: Connection, most: int, timeout: float | None) -> bytes:
    """What one ``recv`` gives: b"" at the end. Raises TimeoutError after ``timeout`` seconds without data, the OSError
    of a recorded failure, and WaitsForEver if nothing would ever come."""
    refuse_in_thread(network, f"to {connection.host}:{connection.port}")
    event = connection.peek()
    where = f"reading from {connection.host}:{connection.port}"
    wait(network, None if event is None else connection.wait_ns(event), timeout, where)
    event = connection.take(most)
    if event.kind == "data":
        return event.data
    if event.kind == "eof":
        return b""
    raise read_error(event)


def _fail(network: Network, failure: ConnectFailed, timeout: float | None, where: str) -> NoReturn:
    """Raise what the system did, when it did, unless ``timeout`` is over before."""
    try:
        wait(network, None if failure.kind == "silence" else failure.after_ns, timeout, where)
    except TimeoutError:
        raise TimeoutError(failure.message if failure.in_handshake else "timed out") from None
    raise connect_error(failure)


def refuse_in_thread(network: Network, where: str) -> None:
    if not network.clock.in_its_thread:
        name = threading.current_thread().name
        raise network.refuse(SyncClientInThread(f"a blocking HTTP request {where} in the thread {name!r}"))


def wait(network: Network, ns: int | None, timeout: float | None, where: str) -> None:
    """Let ``ns`` pass, at most ``timeout`` seconds; None is for ever."""
    timeout_ns = None if timeout is None else max(0, round(timeout * NS))
    if timeout_ns is not None and (ns is None or ns > timeout_ns):
        network.clock.advance(timeout_ns)
        raise TimeoutError("timed out")
    while ns is None and network.clock.alarm_ns is not None:
        network.clock.advance_to(network.clock.alarm_ns)
    if ns is None:
        raise network.refuse(WaitsForEver(f"{where}: nothing more came, and the client has no timeout"))
    network.clock.advance(ns)
