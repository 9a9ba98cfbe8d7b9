"""A recording of outbound HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import trustme

from dumps.record.recorder import RecordLevel
from dumps.record.seams import aiohttp_client, http_client_socket, httpcore_backend
from dumps.record.seams.log import WorldLog
from tests.scripted_server import ScriptedServer, scripted_server

Recording = Callable[..., AbstractContextManager[WorldLog]]


@contextmanager
def _recording(level: RecordLevel = RecordLevel.FULL) -> Iterator[WorldLog]:
    log = WorldLog(level=level)
    with ExitStack() as stack:
        for seam in (aiohttp_client, httpcore_backend, http_client_socket):
            stack.callback(seam.install(log))
        yield log


@pytest.fixture
def recording() -> Recording:
    """``with recording() as log:`` with the seams of all clients in place."""
    return _recording


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> tuple[trustme.CA, str]:
    """Who signs the servers' certificates, and a file for clients that trust it."""
    authority = trustme.CA()
    path: Path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return authority, str(path)


@pytest.fixture(scope="module")
def secure_server(authority, request) -> Iterator[ScriptedServer]:
    """A server with TLS for the ``SCRIPTS`` of the test's module."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority[0].issue_cert("localhost").configure_cert(context)
    with scripted_server(request.module.SCRIPTS, context) as running:
        yield running
