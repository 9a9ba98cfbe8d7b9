"""An aiohttp application that fails, recorded by its own module, and variants of it to replay."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from dumps.record.aiohttp_app import record_aiohttp

CLIENT = web.AppKey("client", aiohttp.ClientSession)
CURRENCY = web.AppKey("currency", str)


async def fetched(client: aiohttp.ClientSession, path: str) -> Any:
    async with client.get(path) as answer:
        return await answer.json()


async def price_of(client: aiohttp.ClientSession, city: str) -> Any:
    await fetched(client, "/rate")
    return (await fetched(client, f"/prices?city={city}"))["price"]


async def mended_price_of(client: aiohttp.ClientSession, city: str) -> Any:
    await fetched(client, "/rate")
    return (await fetched(client, f"/prices?city={city}")).get("price")


async def curious_price_of(client: aiohttp.ClientSession, city: str) -> Any:
    await fetched(client, f"/news?city={city}")
    return await price_of(client, city)


async def upload(request: web.Request) -> web.Response:
    kept = 0
    async for piece in request.content.iter_any():
        async with request.app[CLIENT].post("/store", data=piece) as answer:
            kept += (await answer.json())["kept"]
    return web.json_response({"kept": kept})


async def slow(request: web.Request) -> web.Response:
    await fetched(request.app[CLIENT], "/never")
    return web.Response()


async def health(request: web.Request) -> web.Response:
    async with request.app[CLIENT].get("/health") as upstream:
        return web.json_response({}, status=503 if upstream.status == 500 else 200)


async def healthy(request: web.Request) -> web.Response:
    await fetched(request.app[CLIENT], "/health")
    return web.json_response({})


async def connected(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(os.environ["UPSTREAM"]) as client:
        app[CLIENT] = client
        app[CURRENCY] = (await fetched(client, "/config"))["currency"]
        yield


@web.middleware
async def with_currency(request: web.Request, handler: Any) -> web.StreamResponse:
    response: web.StreamResponse = await handler(request)
    response.headers["X-Currency"] = request.app[CURRENCY]
    return response


def make(price: Any = price_of, well: Any = health) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        return web.json_response({"price": await price(request.app[CLIENT], asked["city"])})

    app = web.Application(middlewares=[with_currency])
    app.router.add_post("/answer", answer)
    app.router.add_post("/upload", upload)
    app.router.add_get("/slow", slow)
    app.router.add_get("/health", well)
    app.cleanup_ctx.append(connected)
    return app


def mended() -> web.Application:
    return make(mended_price_of, healthy)


async def curious() -> web.Application:
    return make(curious_price_of)


app = record_aiohttp(make(), os.environ["DUMPS"], level="full", timeout=1.0)
