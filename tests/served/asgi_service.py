"""A Starlette application that fails, recorded by its own module, and variants of it to replay."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dumps.record.asgi import record_asgi


async def price_of(client: httpx.AsyncClient, city: str) -> Any:
    await client.get("/rate")
    answer = (await client.get("/prices", params={"city": city})).json()
    return answer["price"]


async def mended_price_of(client: httpx.AsyncClient, city: str) -> Any:
    await client.get("/rate")
    return (await client.get("/prices", params={"city": city})).json().get("price")


async def curious_price_of(client: httpx.AsyncClient, city: str) -> Any:
    await client.get("/news", params={"city": city})
    return await price_of(client, city)


async def upload(request: Request) -> Response:
    kept = 0
    async for piece in request.stream():
        if piece:
            kept += (await request.app.state.client.post("/store", content=piece)).json()["kept"]
    return JSONResponse({"kept": kept})


async def slow(request: Request) -> Response:
    await request.app.state.client.get("/never", timeout=None)
    return Response()


async def health(request: Request) -> Response:
    upstream = await request.app.state.client.get("/health")
    return JSONResponse({}, status_code=503 if upstream.status_code == 500 else 200)


async def healthy(request: Request) -> Response:
    await request.app.state.client.get("/health")
    return JSONResponse({})


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with httpx.AsyncClient(base_url=os.environ["UPSTREAM"], trust_env=False) as client:
        app.state.client = client
        app.state.currency = (await client.get("/config")).json()["currency"]
        yield


def make(price: Any = price_of, well: Any = health) -> Starlette:
    async def answer(request: Request) -> Response:
        asked = await request.json()
        client = request.app.state.client
        return JSONResponse({"price": await price(client, asked["city"]), "currency": request.app.state.currency})

    routes = [
        Route("/answer", answer, methods=["POST"]),
        Route("/upload", upload, methods=["POST"]),
        Route("/slow", slow),
        Route("/health", well),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def mended() -> Starlette:
    return make(mended_price_of, healthy)


def curious() -> Starlette:
    return make(curious_price_of)


app = record_asgi(make(), os.environ["DUMPS"], level="full", timeout=1.0)
