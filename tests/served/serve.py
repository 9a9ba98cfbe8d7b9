"""Serves one of the applications on loopback: python serve.py {asgi,aiohttp}. Its first line says at which port."""

from __future__ import annotations

import importlib
import socket
import sys


def main() -> None:
    kind = sys.argv[1]
    app = importlib.import_module(f"{kind}_service").app
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    sys.stdout.write(f"{sock.getsockname()[1]}\n")
    sys.stdout.flush()
    if kind == "asgi":
        import uvicorn

        config = uvicorn.Config(app, loop="asyncio", log_level="critical", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[sock])
    else:
        from aiohttp import web

        web.run_app(app, sock=sock, print=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    main()
