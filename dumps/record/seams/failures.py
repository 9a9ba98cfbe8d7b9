"""What kind of failure an error of a network library is, in the words of `Exchange.error`."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard

MAX_CAUSES = 20


def failure_kind(error: BaseException, *, otherwise: str) -> str:
    """ "dns", "refused", "reset", "timeout" or "tls"; ``otherwise`` where neither ``error`` nor what it came from says.

    Libraries wrap what the system raised: causes, contexts, groups and the attributes ``os_error`` and ``reason`` are
    followed, the outermost that says something decides.
    """
    return next((kind for one in _causes(error) if (kind := _kind(one))), otherwise)


def failure_message(error: BaseException) -> str:
    """As raised: the text of the error, or of what it came from where it has none; else its type."""
    try:
        return next((text for one in _causes(error) if (text := str(one))), type(error).__name__)
    except Exception:  # a broken __str__ must not reach the program
        return type(error).__name__


def is_failure(error: BaseException) -> TypeGuard[Exception]:
    """False for what ends a wait from outside: a cancelled task, Ctrl-C, a generator that is closed."""
    return isinstance(error, Exception) and not isinstance(error, asyncio.CancelledError)


@contextmanager
def told_to(listener: Callable[[BaseException], None]) -> Iterator[None]:
    """``listener`` hears of what the block raises."""
    try:
        yield
    except BaseException as error:
        listener(error)
        raise


def _kind(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "dns"
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return "timeout"
    if isinstance(error, ssl.SSLError | ssl.CertificateError):
        return "tls"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return "reset"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    queue, seen = [error], set[int]()
    while queue and len(seen) < MAX_CAUSES:
        one = queue.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = [one.__cause__, one.__context__, *(getattr(one, name, None) for name in ("os_error", "reason"))]
        if isinstance(one, BaseExceptionGroup):
            inner += one.exceptions
        queue += [other for other in inner if isinstance(other, BaseException)]
