"""The replay server's HTTP interface: `/debug/replay`, `/healthz`, `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import web

from replay import strict_json
from replay.errors import UsageError
from replay.isolate.result import Result
from replay.report import exit_code
from replay.server import auth, metrics, options, sse
from replay.server.answers import add_headers, errors_as_json
from replay.server.origin import check_origin
from replay.server.problems import Problem, from_run, json_response, problem
from replay.server.replays import Replays, Settings
from replay.server.store import DumpStore, kept_upload, too_large
from replay.verdict import Verdict

MAX_UPLOAD_BYTES = 256 << 20
MAX_JSON_BYTES = 1 << 20
UPLOAD_TIMEOUT_S = 600.0
CHUNK_BYTES = 1 << 18
OPTIONS_HEADER = "X-PPLX-Options"
EXIT_CODE_HEADER = "X-PPLX-Exit-Code"
DUMP_TYPES = frozenset({"application/octet-stream", "application/x-pplx"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """``dumps`` is the folder whose dumps have ids. ``allowed_hosts`` are Host names beside the loopback ones."""

    dumps: Path
    token: str
    settings: Settings
    max_upload_bytes: int = MAX_UPLOAD_BYTES
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One replay as it was asked for: where the dump lies, and what a client may know it by."""

    path: Path
    dump_id: str | None
    options: options.ClientOptions


def make_app(config: ServerConfig) -> web.Application:
    """The application. It owns its worker processes: cleaning it up ends them."""
    middlewares = (errors_as_json, check_origin(config.allowed_hosts), auth.require_token(config.token))
    app = web.Application(middlewares=middlewares, client_max_size=MAX_JSON_BYTES)
    api = _Api(config)
    app.router.add_get("/healthz", api.health)
    app.router.add_get("/metrics", api.metrics)
    app.router.add_get("/debug/replay", api.list_dumps)
    app.router.add_post("/debug/replay", api.replay)
    app.on_response_prepare.append(add_headers)
    app.on_shutdown.append(api.shut_down)
    app.cleanup_ctx.append(api.upload_folder)
    return app


class _Api:
    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._store = DumpStore(config.dumps)
        self._replays = Replays(config.settings)
        self._uploads = 0
        self._folder = Path()

    async def upload_folder(self, _app: web.Application) -> AsyncIterator[None]:
        """Uploads lie in a folder of their own (0700) outside of the dumps: serving does not write to those."""
        with TemporaryDirectory(prefix="pplx-serve-") as folder:
            self._folder = Path(folder)
            yield

    async def shut_down(self, _app: web.Application) -> None:
        await self._replays.close()

    async def health(self, _request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def metrics(self, _request: web.Request) -> web.Response:
        text = metrics.text(self._replays.counts, self._uploads)
        return web.Response(body=text.encode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def list_dumps(self, _request: web.Request) -> web.Response:
        entries, truncated = await self._store.entries()
        return json_response({"dumps": entries, "truncated": truncated})

    async def replay(self, request: web.Request) -> web.StreamResponse:
        """Replay an upload or a dump by id, and answer with the report or a stream that ends with it."""
        if request.query_string:
            raise problem(
                400, "UsageError", "no query parameters here", remedy=f"options go into the body or {OPTIONS_HEADER}"
            )
        async with AsyncExitStack() as stack:
            stack.enter_context(self._replays.admitted())
            if request.content_type == "application/json":
                asked = await self._asked_by_id(request)
            elif request.content_type in DUMP_TYPES:
                asked = await self._asked_by_upload(request, stack)
            else:
                raise problem(
                    415,
                    "UnsupportedMediaType",
                    "the body is a dump or JSON",
                    remedy=f"send Content-Type: application/json or one of {', '.join(sorted(DUMP_TYPES))}",
                )
            if sse.wanted(request):
                return await self._stream(request, asked)
            report, headers = await self._report(asked, None)
            return json_response(report, headers=headers)

    async def _asked_by_id(self, request: web.Request) -> _Asked:
        if OPTIONS_HEADER in request.headers:
            raise problem(400, "UsageError", f"{OPTIONS_HEADER} is for uploads; put options into the body")
        body = _json(await request.read())
        if not isinstance(body, dict):
            raise problem(400, "UsageError", "the body is not a JSON object", remedy='send {"dump": "<id>"}')
        for name in body:
            if name not in ("dump", "options"):
                raise problem(
                    400,
                    "UsageError",
                    f"there is no key {name[:80]!r}",
                    remedy=options.nearest(name, ("dump", "options")),
                )
        dump_id = body.get("dump")
        if not isinstance(dump_id, str):
            raise problem(400, "UsageError", "the body names no dump", remedy='send {"dump": "<id>"}')
        chosen = self._options(body.get("options", {}))
        return _Asked(path=await self._store.find(dump_id), dump_id=dump_id, options=chosen)

    async def _asked_by_upload(self, request: web.Request, stack: AsyncExitStack) -> _Asked:
        given = request.headers.getall(OPTIONS_HEADER, [])
        if len(given) > 1:
            raise problem(400, "UsageError", f"{OPTIONS_HEADER} stands more than once")
        chosen = self._options(_json(given[0].encode("utf-8", "surrogateescape")) if given else {})
        limit = self._config.max_upload_bytes
        if request.content_length is not None and request.content_length > limit:
            raise too_large(limit)
        self._uploads += 1
        try:
            async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                chunks = request.content.iter_chunked(CHUNK_BYTES)
                path = await stack.enter_async_context(kept_upload(self._folder, chunks, max_bytes=limit))
        except TimeoutError as error:
            raise problem(408, "UploadTimeout", f"the upload took longer than {UPLOAD_TIMEOUT_S:g} s") from error
        return _Asked(path=path, dump_id=None, options=chosen)

    def _options(self, given: object) -> options.ClientOptions:
        return options.from_client(given, max_timeout_s=self._config.settings.timeout_s)

    async def _report(self, asked: _Asked, backlog: sse.Backlog | None) -> tuple[dict[str, Any], dict[str, str]]:
        """The report and the headers that go with it. Raises Problem where there is none."""
        result = await self._replays.run(
            asked.options.job(str(asked.path)),
            timeout_s=asked.options.timeout_s,
            on_event=backlog.put if backlog else None,
        )
        if result.error is not None:
            raise from_run(_without_path(result, asked), dump_id=asked.dump_id)
        assert result.report is not None
        return result.report, _exit_code_header(result.report, asked.options.expect)

    async def _stream(self, request: web.Request, asked: _Asked) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": sse.CONTENT_TYPE, "X-Accel-Buffering": "no"})
        await response.prepare(request)
        backlog = sse.Backlog()
        work = asyncio.create_task(self._last_event(asked, backlog))
        try:
            await sse.stream(response, backlog, work)
            await response.write(await work)
            await response.write_eof()
        except ConnectionResetError:
            pass  # nobody listens any more
        finally:
            work.cancel()
            await asyncio.wait([work])
        return response

    async def _last_event(self, asked: _Asked, backlog: sse.Backlog) -> bytes:
        try:
            report, _ = await self._report(asked, backlog)
        except Problem as error:
            return sse.encode("error", {"status": error.status, **error.body})
        return sse.encode("report", report)


def _json(data: bytes) -> Any:
    try:
        return strict_json.loads(data)
    except strict_json.InvalidJson as error:
        raise UsageError(str(error), remedy=error.remedy) from error


def _exit_code_header(report: Mapping[str, Any], expected: Verdict | None) -> dict[str, str]:
    try:
        code = exit_code(Verdict(report.get("verdict", "")), expected=expected)
    except ValueError:
        return {}
    return {EXIT_CODE_HEADER: str(code)}


def _without_path(result: Result, asked: _Asked) -> Result:
    """A client knows ids. Where a file lies on this machine is not its business, and an upload is gone by then."""
    assert result.error is not None
    known_as = asked.dump_id or "UPLOAD"

    def hide(text: str) -> str:
        return text.replace(str(asked.path), known_as)

    error = replace(
        result.error,
        message=hide(result.error.message),
        remedy=hide(result.error.remedy),
        evidence=hide(result.error.evidence),
    )
    return replace(result, error=error)
