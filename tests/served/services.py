"""What the recorded servers ask: real services on loopback, gone when they are replayed."""

from __future__ import annotations

import asyncio

from aiohttp import web


class Upstream:
    """Prices that are missing for Faro and slow for Lisbon, a store for uploads, and one path that never answers."""

    def __init__(self) -> None:
        self.asked = 0
        self._stop = asyncio.Event()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{name}", self.get)
        app.router.add_post("/store", self.store)
        app.on_shutdown.append(self._end)
        return app

    async def get(self, request: web.Request) -> web.Response:
        self.asked += 1
        city = request.query.get("city", "")
        match request.match_info["name"]:
            case "config":
                return web.json_response({"currency": "EUR"})
            case "health":
                return web.json_response({"ok": False}, status=500)
            case "rate":
                return web.json_response({"asked": self.asked})
            case "prices" if city == "Faro":
                return web.json_response({"city": city})
            case "prices":
                await asyncio.sleep(0.4)
                return web.json_response({"city": city, "price": 7})
        await self._stop.wait()
        return web.Response()

    async def store(self, request: web.Request) -> web.Response:
        return web.json_response({"kept": len(await request.read())})

    async def _end(self, app: web.Application) -> None:
        self._stop.set()
