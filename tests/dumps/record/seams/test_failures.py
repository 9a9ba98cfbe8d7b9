"""Errors of network libraries in the words of an exchange."""

from __future__ import annotations

import asyncio
import socket
import ssl

import aiohttp
import httpcore
import pytest

from dumps.record.seams.failures import failure_kind, failure_message, is_failure


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


class WithReason(Exception):
    def __init__(self, reason: object) -> None:
        self.reason = reason

    def __str__(self) -> str:
        raise ValueError("broken")


KEY = aiohttp.client_reqrep.ConnectionKey("h", 80, False, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (socket.gaierror(-2, "Name or service not known"), "dns"),
        (aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(-2, "unknown")), "dns"),
        (caused(httpcore.ConnectError("x"), ConnectionRefusedError(111, "refused")), "refused"),
        (ExceptionGroup("all failed", [ConnectionRefusedError(111, "refused")]), "refused"),
        (caused(httpcore.ReadError(), ConnectionResetError(104, "reset")), "reset"),
        (BrokenPipeError(32, "pipe"), "reset"),
        (httpcore.ReadTimeout("timed out"), "timeout"),
        (aiohttp.SocketTimeoutError("Timeout on reading data from socket"), "timeout"),
        (TimeoutError("timed out"), "timeout"),
        (ssl.SSLCertVerificationError("bad certificate"), "tls"),
        (caused(httpcore.ConnectError("x"), ssl.SSLError("handshake")), "tls"),
        (WithReason(ConnectionRefusedError(111, "refused")), "refused"),
        (OSError(113, "No route to host"), "otherwise"),
    ],
)
def test_kinds(error, kind):
    assert failure_kind(error, otherwise="otherwise") == kind


def test_causes_that_go_round():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert failure_kind(first, otherwise="reset") == "reset"


def test_messages():
    assert (
        failure_message(ConnectionResetError(104, "Connection reset by peer")) == "[Errno 104] Connection reset by peer"
    )
    assert failure_message(caused(httpcore.ReadError(), ConnectionResetError(104, "gone"))) == "[Errno 104] gone"
    assert failure_message(TimeoutError()) == "TimeoutError"
    assert failure_message(WithReason(None)) == "WithReason"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), GeneratorExit()])
def test_what_ends_a_wait_from_outside_is_no_failure(error):
    assert not is_failure(error)
    assert is_failure(TimeoutError())
