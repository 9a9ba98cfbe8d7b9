"""Serves the gateway on loopback, recorded: python serve.py DUMPS. Its first line says at which port."""

from __future__ import annotations

import socket
import sys

from aiohttp import web

from dumps.record.aiohttp_app import record_aiohttp
from tests.gateway.gateway import app


def main() -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    sys.stdout.write(f"{sock.getsockname()[1]}\n")
    sys.stdout.flush()
    recorded = record_aiohttp(app(), sys.argv[1], level="full")
    web.run_app(recorded, sock=sock, print=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    main()
