"""What a program sees through each real HTTP client: status, headers, pieces as they come, the error."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp
import httpx
import requests
import urllib3

READ_TIMEOUT = 0.4


@dataclass(slots=True)
class Seen:
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    error: tuple[str, str] | None = None

    def answered(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.status, self.headers = status, list(headers)

    def failed(self, error: BaseException) -> None:
        """With the chain of causes by type: programs look at those too. Addresses of objects are left out."""
        chain: list[str] = []
        one: BaseException | None = error
        while one is not None:
            chain.append(f"{type(one).__module__}.{type(one).__qualname__}")
            one = one.__cause__
        self.error = (" < ".join(chain), re.sub(r"0x[0-9a-f]+", "0x", str(error)))


@contextmanager
def _noted() -> Iterator[Seen]:
    """What the block sees. An exception ends it, and is noted."""
    seen = Seen()
    try:
        yield seen
    except Exception as error:
        seen.failed(error)


async def by_aiohttp(url: str, *, chunks: bool = False) -> Seen:
    timeout = aiohttp.ClientTimeout(sock_read=READ_TIMEOUT, sock_connect=READ_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        with _noted() as seen:
            async with session.get(url) as response:
                seen.answered(response.status, response.headers.items())
                if response.content is aiohttp.streams.EMPTY_PAYLOAD:
                    pass  # iter_chunks() never ends on it, from the second time in a process on
                elif chunks:
                    async for piece, end in response.content.iter_chunks():
                        seen.pieces.append(piece + (b"|" if end else b""))
                else:
                    async for piece in response.content.iter_any():
                        seen.pieces.append(piece)
    return seen


async def by_aiohttp_in_chunks(url: str) -> Seen:
    return await by_aiohttp(url, chunks=True)


async def by_httpx(url: str) -> Seen:
    async with httpx.AsyncClient(timeout=READ_TIMEOUT, trust_env=False) as client:
        with _noted() as seen:
            async with client.stream("GET", url) as response:
                seen.answered(response.status_code, response.headers.multi_items())
                async for piece in response.aiter_raw():
                    seen.pieces.append(piece)
    return seen


def by_httpx_sync(url: str) -> Seen:
    client = httpx.Client(timeout=READ_TIMEOUT, trust_env=False)
    with client, _noted() as seen, client.stream("GET", url) as response:
        seen.answered(response.status_code, response.headers.multi_items())
        seen.pieces.extend(response.iter_raw())
    return seen


def by_urllib(url: str) -> Seen:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with _noted() as seen:
        try:
            response = opener.open(url, timeout=READ_TIMEOUT)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            seen.answered(response.status, response.headers.items())
            while piece := response.read1(65536):
                seen.pieces.append(piece)
    return seen


def by_urllib3(url: str) -> Seen:
    with urllib3.PoolManager(retries=False, timeout=READ_TIMEOUT) as pool, _noted() as seen:
        response = pool.request("GET", url, preload_content=False)
        seen.answered(response.status, response.headers.items())
        seen.pieces.extend(response.stream(65536, decode_content=False))
        response.release_conn()
    return seen


def by_requests(url: str) -> Seen:
    with requests.Session() as session, _noted() as seen:
        session.trust_env = False
        with session.get(url, stream=True, timeout=READ_TIMEOUT) as response:
            seen.answered(response.status_code, response.headers.items())
            seen.pieces.extend(response.iter_content(65536))
    return seen


ASYNC: dict[str, Callable[[str], Awaitable[Seen]]] = {
    "aiohttp": by_aiohttp,
    "aiohttp in chunks": by_aiohttp_in_chunks,
    "httpx": by_httpx,
}
SYNC: dict[str, Callable[[str], Seen]] = {
    "httpx sync": by_httpx_sync,
    "urllib": by_urllib,
    "urllib3": by_urllib3,
    "requests": by_requests,
}
