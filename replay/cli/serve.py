"""``pplx-replay serve``: replay dumps over HTTP on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import click

from replay.cli.console import command, debug_level, json_option, note, print_json, stdout
from replay.cli.params import as_bytes, as_seconds, load_timeout_option
from replay.errors import UsageError
from replay.server.app import ServerConfig
from replay.server.auth import checked_token, new_token, read_token
from replay.server.origin import is_unspecified
from replay.server.process import serve as serve_app
from replay.server.replays import Settings


@command()
@click.option("--port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="0 takes any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--dumps",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder whose .pplx files can be replayed by id.",
)
@click.option(
    "--timeout",
    callback=as_seconds,
    metavar="DURATION",
    default="60s",
    show_default=True,
    help="Most time for the steps of one replay.",
)
@load_timeout_option
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Replays at once.")
@click.option(
    "--warm/--no-warm",
    default=True,
    show_default=True,
    help="Keep a replay's process and model for the next one, or start anew.",
)
@click.option("--queue", type=click.IntRange(0, 1000), default=8, show_default=True, help="Replays that may wait.")
@click.option(
    "--max-upload",
    callback=as_bytes,
    metavar="SIZE",
    default="256MiB",
    show_default=True,
    help="Largest dump to upload.",
)
@click.option(
    "--memory", callback=as_bytes, metavar="SIZE", help="Most memory of one replay.  [default: a share of this machine]"
)
@click.option("--token", help="Token that clients must send; seen by others in the process list.  [default: random]")
@click.option("--token-file", type=click.Path(path_type=Path), help="File (mode 0600) that holds the token.")
@click.option("--allow-remote", is_flag=True, help="Allow an address that other machines can reach. No TLS.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Host name to answer to, beside loopback ones.")
@json_option
def serve(
    *,
    port: int,
    host: str,
    dumps: Path,
    timeout: float,
    load_timeout: float,
    workers: int,
    warm: bool,
    queue: int,
    max_upload: int,
    memory: int | None,
    token: str | None,
    token_file: Path | None,
    allow_remote: bool,
    allow_host: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replay dumps over HTTP on this machine.

    Each replay runs in a process of its own without network. POST /debug/replay takes a dump, or the id of one in
    the folder, and answers with the report; GET /debug/replay lists. The token is printed at the start.

    \b
    Examples:
      pplx-replay serve --dumps ./dumps --timeout 5s
      curl -H "Authorization: Bearer $TOKEN" localhost:8081/debug/replay
      curl -H "Authorization: Bearer $TOKEN" --json '{"dump": "0123456789abcdef"}' localhost:8081/debug/replay
      curl -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/x-pplx" \\
           -H 'X-PPLX-Options: {"target": "schedule"}' -H "Accept: text/event-stream" \\
           --data-binary @crash.pplx -N localhost:8081/debug/replay

    \b
    Answers:
      200 a report, whatever its verdict; X-PPLX-Exit-Code (not with SSE) is that of pplx-replay run
      400 option or body   401 token   404 id   413 size   415 type   422 bad dump
      424 no weights   429 busy   500 the replay's process died   504 timeout
    """
    if token is not None and token_file is not None:
        raise UsageError("--token and --token-file exclude each other")
    secret = read_token(token_file) if token_file else checked_token(token) if token is not None else new_token()
    _log_to_stderr()
    settings = Settings(
        timeout_s=timeout,
        load_timeout_s=load_timeout,
        workers=workers,
        warm=warm,
        queue=queue,
        memory_limit=memory,
    )
    hosts = (*allow_host, host) if allow_remote and not is_unspecified(host) else allow_host
    config = ServerConfig(
        dumps=dumps, token=secret, settings=settings, max_upload_bytes=max_upload, allowed_hosts=hosts
    )
    if allow_remote:
        note("others can reach this server, and the token travels in clear: put TLS in front of it")

    def ready(url: str) -> None:
        if as_json:
            print_json({"url": url, "token": secret, "pid": os.getpid()})
        else:
            stdout().print(f"ready {url}/debug/replay\nexport TOKEN={secret}", soft_wrap=True)
            sys.stdout.flush()

    asyncio.run(serve_app(config, host=host, port=port, allow_remote=allow_remote, on_ready=ready))


def _log_to_stderr() -> None:
    level = {0: logging.ERROR, 1: logging.INFO}.get(debug_level(), logging.DEBUG)
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
