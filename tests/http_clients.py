"""Real HTTP clients in one shape, for tests that ask the same of each of them."""

from __future__ import annotations

import asyncio
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

import aiohttp
import httpx
import httpx2
import urllib3


@dataclass(frozen=True, slots=True)
class Ask:
    """One program of requests: those of ``urls`` after each other on one connection if they allow it."""

    urls: tuple[str, ...]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 5.0
    trust: str | None = None  # a file of certificates; without one no server with TLS is trusted

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    @property
    def tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.trust is not None:
            context.load_verify_locations(self.trust)
        return context


Outcome = list[tuple[int, bytes] | str]
"""What the program got of each request: status and body, or the type and text of the error that ended it."""


def with_aiohttp(ask: Ask) -> Outcome:
    async def program() -> Outcome:
        outcome: Outcome = []
        timeout = aiohttp.ClientTimeout(sock_read=ask.timeout_s, sock_connect=ask.timeout_s)
        connector = aiohttp.TCPConnector(ssl=ask.tls)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            try:
                for url in ask.urls:
                    async with session.request(ask.method, url, data=ask.body, headers=ask.headers) as answer:
                        outcome.append((answer.status, await answer.read()))
            except (aiohttp.ClientError, TimeoutError) as error:
                outcome.append(_said(error))
        return outcome

    return asyncio.run(program())


def with_httpx(ask: Ask) -> Outcome:
    return with_client_of(httpx, ask)


def with_client_of(library: ModuleType, ask: Ask) -> Outcome:
    outcome: Outcome = []
    with library.Client(timeout=ask.timeout_s, verify=ask.tls, trust_env=False) as client:
        try:
            for url in ask.urls:
                answer = client.request(ask.method, url, content=ask.body, headers=ask.headers)
                outcome.append((answer.status_code, answer.content))
        except library.HTTPError as error:
            outcome.append(_said(error))
    return outcome


def with_httpx_async(ask: Ask) -> Outcome:
    async def program() -> Outcome:
        outcome: Outcome = []
        async with httpx.AsyncClient(timeout=ask.timeout_s, verify=ask.tls, trust_env=False) as client:
            try:
                for url in ask.urls:
                    answer = await client.request(ask.method, url, content=ask.body, headers=ask.headers)
                    outcome.append((answer.status_code, answer.content))
            except httpx.HTTPError as error:
                outcome.append(_said(error))
        return outcome

    return asyncio.run(program())


def with_httpx2(ask: Ask) -> Outcome:
    return with_client_of(httpx2, ask)


def with_urllib(ask: Ask) -> Outcome:
    outcome: Outcome = []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ask.tls))
    try:
        for url in ask.urls:
            request = urllib.request.Request(url, ask.body, dict(ask.headers), method=ask.method)
            with opener.open(request, timeout=ask.timeout_s) as answer:
                outcome.append((answer.status, answer.read()))
    except OSError as error:
        outcome.append(_said(error))
    except Exception as error:  # http.client's own: IncompleteRead, BadStatusLine
        outcome.append(_said(error))
    return outcome


def with_urllib3(ask: Ask) -> Outcome:
    outcome: Outcome = []
    with urllib3.PoolManager(timeout=ask.timeout_s, retries=False, ssl_context=ask.tls) as pool:
        try:
            for url in ask.urls:
                answer = pool.request(ask.method, url, body=ask.body, headers=dict(ask.headers), decode_content=False)
                outcome.append((answer.status, answer.data))
        except urllib3.exceptions.HTTPError as error:
            outcome.append(_said(error))
    return outcome


CLIENTS: dict[str, Callable[[Ask], Outcome]] = {
    "aiohttp": with_aiohttp,
    "httpx": with_httpx,
    "httpx-async": with_httpx_async,
    "httpx2": with_httpx2,
    "urllib": with_urllib,
    "urllib3": with_urllib3,
}
RECORDED_AS = {"aiohttp": "aiohttp", "urllib": "http.client", "urllib3": "http.client"}
"""`Exchange.client`; "httpcore" for the others."""


def _said(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"
